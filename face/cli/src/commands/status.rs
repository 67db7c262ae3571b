//! `spillway status`: what helpers and servers on this machine are doing.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use spillway_helper::HelperStatus;
use spillway_shim_core::status::find;

use super::servers;

/// Say what a helper on this machine is doing (its links, clients and batches), and the servers here that run under
/// `spillway run`.
///
/// A helper has to run with --status-socket. Servers tell their own user and root.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only the helper with this status socket [default: the usual one, and all servers]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Everything, as JSON: with --socket the helper's status, otherwise `helper` and `servers`
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> ExitCode {
    match &args.socket {
        Some(socket) => one_helper(socket, args.json),
        None => everything(args.json),
    }
}

fn one_helper(socket: &Path, as_json: bool) -> ExitCode {
    let text = match spillway_helper::query(socket) {
        Ok(text) => text,
        Err(error) => return failed(&cannot_ask(socket, &error)),
    };
    if as_json {
        print!("{text}");
        return ExitCode::SUCCESS;
    }
    match serde_json::from_str::<HelperStatus>(&text) {
        Ok(status) => {
            println!("{status}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            failed(&format!("{} answers something else than a helper's status: {error}", socket.display()))
        }
    }
}

fn everything(as_json: bool) -> ExitCode {
    let socket = Path::new(spillway_helper::DEFAULT_PATH);
    let helper = spillway_helper::query(socket);
    let (pages, unreadable) = find();
    let servers: Vec<_> = pages.iter().filter_map(|page| Some((page, page.status().ok()?))).collect();
    for one in &unreadable {
        eprintln!("spillway: {}: {}", one.path.display(), one.error);
    }
    if let Err(error) = &helper
        && servers.is_empty()
    {
        return failed(&format!("{}; and {}", cannot_ask(socket, error), servers::none_found(&unreadable)));
    }
    if as_json {
        let helper = helper.ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
        let servers: Vec<Value> =
            servers.iter().map(|(page, status)| servers::as_json(page, status)).collect();
        println!("{:#}", json!({ "helper": helper, "servers": servers }));
        return ExitCode::SUCCESS;
    }
    if let Ok(text) = helper {
        match serde_json::from_str::<HelperStatus>(&text) {
            Ok(status) => println!("{status}"),
            Err(error) => eprintln!("spillway: {} answers no helper's status: {error}", socket.display()),
        }
    }
    for (page, status) in &servers {
        println!("{}", servers::as_text(page, status));
    }
    ExitCode::SUCCESS
}

fn cannot_ask(socket: &Path, error: &io::Error) -> String {
    let next = match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            "; is a helper running with --status-socket? (--socket PATH names another one)"
        }
        ErrorKind::PermissionDenied => "; it is for its owner and group",
        _ => "",
    };
    format!("cannot ask {}: {error}{next}", socket.display())
}

fn failed(why: &str) -> ExitCode {
    eprintln!("spillway: {why}");
    ExitCode::FAILURE
}
