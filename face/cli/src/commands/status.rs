//! `spillway status`: shows helpers, sidecars and servers of this host.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use spillway_helper::HelperStatus;
use spillway_helper::control::{AskError, Request, ask};
use spillway_shim_core::status::{Unreadable, find};
use spillway_sidecar::SidecarStatus;

use super::{output, servers, sockets};

/// Show helpers, sidecars and servers of this host
///
/// Helpers and sidecars answer on their admin sockets (`helper.socket` in the file, or --status-socket) in
/// /run/spillway, in your own runtime directory, or where their units put them; --socket names others. A server answers
/// its own user and root.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only the helper or sidecar with this admin socket [default: the usual ones, and all servers]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Print JSON: with --socket that status, otherwise the lists `helpers`, `sidecars` and `servers`, and the first of
    /// the former two as `helper` and `sidecar`
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> ExitCode {
    match &args.socket {
        Some(socket) => show_one(socket, args.json),
        None => show_all(args.json),
    }
}

/// The answer at an admin socket.
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

fn show_one(socket: &Path, as_json: bool) -> ExitCode {
    match Answer::of(socket) {
        Ok(answer) if as_json => output::print([answer.to_json().trim_end()]),
        Ok(answer) => output::print([answer]),
        Err(error) => failed(&cannot_ask(socket, &error)),
    }
}

fn show_all(as_json: bool) -> ExitCode {
    let (mut helpers, mut sidecars, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for socket in sockets::all() {
        match Answer::of(&socket) {
            Ok(Answer::Helper(status)) => helpers.push(status),
            Ok(Answer::Sidecar(status)) => sidecars.push(status),
            // The socket of a killed program.
            Err(error) if error.is_absent() => {}
            Err(error) => failures.push(cannot_ask(&socket, &error)),
        }
    }
    let (pages, unreadable) = find();
    let servers: Vec<_> = pages.iter().filter_map(|page| Some((page, page.status().ok()?))).collect();
    if helpers.is_empty() && sidecars.is_empty() && servers.is_empty() {
        let why = failures.into_iter().next().unwrap_or_else(why_no_helper);
        return failed(&format!("{why}; and {}", servers::none_found(&unreadable)));
    }
    // Failures are printed, and the others shown.
    failures
        .into_iter()
        .chain(describe_unreadable(&unreadable))
        .for_each(|what| eprintln!("spillway: {what}"));
    if as_json {
        let servers: Vec<Value> =
            servers.iter().map(|(page, status)| servers::as_json(page, status)).collect();
        let (helper, sidecar) = (helpers.first(), sidecars.first());
        return output::print([format!(
            "{:#}",
            json!({
                "helper": helper, "helpers": helpers, "sidecar": sidecar, "sidecars": sidecars, "servers": servers
            })
        )]);
    }
    let here = helpers.iter().map(ToString::to_string).chain(sidecars.iter().map(ToString::to_string));
    output::print(here.chain(servers.iter().map(|(page, status)| servers::as_text(page, status))))
}

/// Lines about status pages that cannot be read; those of other users share one line, since that is normal.
fn describe_unreadable(pages: &[Unreadable]) -> Vec<String> {
    let is_others = |page: &&Unreadable| page.error.kind() == ErrorKind::PermissionDenied;
    let broken = pages.iter().filter(|page| !is_others(page));
    let mut lines: Vec<String> =
        broken.map(|page| format!("{}: {}", page.path.display(), page.error)).collect();
    match pages.iter().filter(is_others).count() {
        0 => {}
        1 => lines.push("1 server of another user".into()),
        others => lines.push(format!("{others} servers of other users")),
    }
    lines
}

/// Why the default helper does not answer, for the case that no admin socket was found.
fn why_no_helper() -> String {
    let usual = sockets::helper();
    match Answer::of(&usual) {
        Err(error) => cannot_ask(&usual, &error),
        Ok(_) => "no helper answered".into(),
    }
}

fn cannot_ask(socket: &Path, error: &AskError) -> String {
    format!("cannot ask {}: {error}", socket.display())
}

fn failed(why: &str) -> ExitCode {
    eprintln!("spillway: {why}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_other_users_are_one_line() {
        let page = |kind: ErrorKind| Unreadable { path: "/dev/shm/a".into(), error: kind.into() };
        let others = || page(ErrorKind::PermissionDenied);
        assert_eq!(describe_unreadable(&[others()]), ["1 server of another user"]);
        let lines = describe_unreadable(&[others(), page(ErrorKind::InvalidData), others()]);
        assert_eq!((lines.len(), &*lines[1]), (2, "2 servers of other users"));
        assert!(lines[0].starts_with("/dev/shm/a: "), "{lines:?}");
    }
}
