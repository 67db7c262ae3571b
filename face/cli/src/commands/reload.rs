//! `spillway reload`: makes a helper or a switch read its configuration again, and prints the outcome.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use spillway_helper::control::{ReloadOutcome, Request, send_request};

use super::output::Report;
use super::sockets;
use super::waiting::with_notice;

/// Reload the settings of a helper or a switch
///
/// Without --socket those of this host's helper. Prints the outcome. With anything wrong the previous settings stay in
/// force, and the exit code is 1.
/// docs/howto/helper.md lists the clients that a change affects. Drained services accept clients again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Admin socket of the helper or switch [default: helper.sock in /run/spillway or $XDG_RUNTIME_DIR/spillway]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let socket = args.socket.clone().unwrap_or_else(sockets::helper);
    let changed = match with_notice(&socket, || send_request::<ReloadOutcome>(&socket, &Request::Reload {})) {
        Ok(changed) => changed,
        Err(error) => {
            let why =
                format!("not reloaded, the previous settings stay in force: {}: {error}", socket.display());
            return Report::failed(why).print("reload", args.json);
        }
    };
    let restart = changed.restart.iter().map(|key| format!("{key}: its new value needs a restart"));
    let summary = format!("reloaded, {} changes", changed.changes.len());
    let lines = changed.changes.iter().cloned().chain(restart).chain([summary]).collect();
    Report { lines, result: json!(changed), ..Report::default() }.print("reload", args.json)
}
