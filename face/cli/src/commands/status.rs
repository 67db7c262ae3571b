//! `spillway status`: what helpers and servers on this machine are doing.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use spillway_helper::control::AskError;
use spillway_shim_core::status::find;

use super::{output, servers};

/// Say what a helper on this machine is doing (its links, clients and batches), and the servers here that run under
/// `spillway run`.
///
/// A helper has to have an admin socket (`helper.socket` in its file, or --status-socket). Servers tell their own user and root.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only the helper with this admin socket [default: the usual one, and all servers]
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
    match spillway_helper::query(socket) {
        Ok(status) if as_json => output::print([status.to_json().trim_end()]),
        Ok(status) => output::print([status]),
        Err(error) => failed(&cannot_ask(socket, &error)),
    }
}

fn everything(as_json: bool) -> ExitCode {
    let socket = Path::new(spillway_helper::DEFAULT_SOCKET);
    let helper = spillway_helper::query(socket);
    let (pages, unreadable) = find();
    let servers: Vec<_> = pages.iter().filter_map(|page| Some((page, page.status().ok()?))).collect();
    for one in &unreadable {
        eprintln!("spillway: {}: {}", one.path.display(), one.error);
    }
    match &helper {
        Err(error) if servers.is_empty() => {
            let why = cannot_ask(socket, error);
            return failed(&format!("{why}; and {}", servers::none_found(&unreadable)));
        }
        // A server's host needs no helper; one that is there and does not answer is told of.
        Err(error) if !error.is_absent() => eprintln!("spillway: {}", cannot_ask(socket, error)),
        _ => {}
    }
    if as_json {
        let helper = helper.ok();
        let servers: Vec<Value> =
            servers.iter().map(|(page, status)| servers::as_json(page, status)).collect();
        return output::print([format!("{:#}", json!({ "helper": helper, "servers": servers }))]);
    }
    let helper = helper.iter().map(ToString::to_string);
    output::print(helper.chain(servers.iter().map(|(page, status)| servers::as_text(page, status))))
}

fn cannot_ask(socket: &Path, error: &AskError) -> String {
    format!("cannot ask {}: {error}", socket.display())
}

fn failed(why: &str) -> ExitCode {
    eprintln!("spillway: {why}");
    ExitCode::FAILURE
}
