//! `spillway status`: what a helper on this machine is doing.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use spillway_helper::HelperStatus;

/// Say what a helper on this machine is doing: its links, clients and batches.
///
/// The helper has to run with --status-socket.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The helper's status socket.
    #[arg(long, value_name = "PATH", default_value = spillway_helper::DEFAULT_PATH)]
    socket: PathBuf,

    /// Everything, as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let socket = args.socket.display();
    let text = match spillway_helper::query(&args.socket) {
        Ok(text) => text,
        Err(error) => {
            let next = match error.kind() {
                ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                    "; is a helper running with --status-socket? (--socket PATH names another one)"
                }
                ErrorKind::PermissionDenied => "; it is for its owner and group",
                _ => "",
            };
            eprintln!("spillway: cannot ask {socket}: {error}{next}");
            return ExitCode::FAILURE;
        }
    };
    if args.json {
        print!("{text}");
        return ExitCode::SUCCESS;
    }
    match serde_json::from_str::<HelperStatus>(&text) {
        Ok(status) => {
            println!("{status}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("spillway: {socket} answers something else than a helper's status: {error}");
            ExitCode::FAILURE
        }
    }
}
