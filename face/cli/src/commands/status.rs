//! `spillway status`: what helpers, sidecars and servers on this machine are doing.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use spillway_helper::HelperStatus;
use spillway_helper::control::{AskError, Request, ask};
use spillway_shim_core::status::find;
use spillway_sidecar::SidecarStatus;

use super::{output, servers};

/// Say what a helper on this machine is doing (its links, clients and batches), a sidecar, and the servers here that run
/// under `spillway run`.
///
/// A helper or a sidecar has to have an admin socket (`helper.socket` in its file, or --status-socket). Servers tell their
/// own user and root.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only the helper or the sidecar with this admin socket [default: the usual ones, and all servers]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Everything, as JSON: with --socket that status, otherwise `helper`, `sidecar` and `servers`
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> ExitCode {
    match &args.socket {
        Some(socket) => one(socket, args.json),
        None => everything(args.json),
    }
}

/// Whoever answers at an admin socket.
enum Answer {
    Helper(HelperStatus),
    Sidecar(Box<SidecarStatus>),
}

impl Answer {
    fn of(socket: &Path) -> Result<Answer, AskError> {
        let answer = |error: serde_json::Error| AskError::Answer(error.to_string());
        let document: Value = ask(socket, &Request::Status {})?;
        if document["kind"] == "sidecar" {
            let status = serde_json::from_value(document).map_err(answer)?;
            return Ok(Answer::Sidecar(Box::new(status)));
        }
        serde_json::from_value(document).map(Answer::Helper).map_err(answer)
    }

    fn to_json(&self) -> String {
        match self {
            Answer::Helper(status) => status.to_json(),
            Answer::Sidecar(status) => status.to_json(),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Helper(status) => status.fmt(f),
            Answer::Sidecar(status) => status.fmt(f),
        }
    }
}

fn one(socket: &Path, as_json: bool) -> ExitCode {
    match Answer::of(socket) {
        Ok(answer) if as_json => output::print([answer.to_json().trim_end()]),
        Ok(answer) => output::print([answer]),
        Err(error) => failed(&cannot_ask(socket, &error)),
    }
}

fn everything(as_json: bool) -> ExitCode {
    let socket = Path::new(spillway_helper::DEFAULT_SOCKET);
    let helper = spillway_helper::query(socket);
    // There need not be one; --socket tells why one does not answer.
    let sidecar = spillway_sidecar::query(Path::new(spillway_sidecar::DEFAULT_SOCKET)).ok();
    let (pages, unreadable) = find();
    let servers: Vec<_> = pages.iter().filter_map(|page| Some((page, page.status().ok()?))).collect();
    for one in &unreadable {
        eprintln!("spillway: {}: {}", one.path.display(), one.error);
    }
    match &helper {
        Err(error) if servers.is_empty() && sidecar.is_none() => {
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
        return output::print([format!(
            "{:#}",
            json!({ "helper": helper, "sidecar": sidecar, "servers": servers })
        )]);
    }
    let helper = helper.iter().map(ToString::to_string);
    let here = helper.chain(sidecar.iter().map(ToString::to_string));
    output::print(here.chain(servers.iter().map(|(page, status)| servers::as_text(page, status))))
}

fn cannot_ask(socket: &Path, error: &AskError) -> String {
    format!("cannot ask {}: {error}", socket.display())
}

fn failed(why: &str) -> ExitCode {
    eprintln!("spillway: {why}");
    ExitCode::FAILURE
}
