//! `spillway status`: shows helpers, sidecars, switches and servers of this host.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use spillway_helper::control::RequestError;
use spillway_shim_core::status::{UnreadablePage, find_pages};

use super::answer::Answer;
use super::output::Report;
use super::waiting::query_all;
use super::{servers, sockets};

/// Show helpers, sidecars, switches and servers of this host
///
/// Helpers, sidecars and switches answer on their admin sockets (`socket` in the file, or --status-socket) in /run/spillway, in your own runtime directory, or where their units put them; --socket names others. A server answers
/// its own user and root.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only the helper, sidecar or switch with this admin socket [default: the usual ones, and all servers]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Print JSON: with --socket that status, otherwise the lists `helpers`, `sidecars`, `switches` and `servers`, and the
    /// first of the former two as `helper` and `sidecar`
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let report = match &args.socket {
        Some(socket) => show_one(socket),
        None => show_all(),
    };
    report.print("status", args.json)
}

fn show_one(socket: &Path) -> Report {
    match Answer::send_request(socket) {
        Ok(answer) => {
            Report { lines: vec![answer.to_string()], result: answer.as_json(), ..Report::default() }
        }
        Err(error) => Report::failed(cannot_ask(socket, &error)),
    }
}

fn show_all() -> Report {
    let (mut helpers, mut sidecars, mut switches, mut stack_servers, mut failures) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let sockets = sockets::all();
    let answers = query_all(&sockets, |socket| Answer::send_request(socket));
    for (socket, answer) in sockets.iter().zip(answers) {
        match answer {
            Ok(Answer::Helper(status)) => helpers.push(status),
            Ok(Answer::Sidecar(status)) => sidecars.push(status),
            Ok(Answer::Switch(status)) => switches.push(status),
            Ok(Answer::Server(status)) => stack_servers.push(status),
            // The socket of a killed program.
            Err(error) if error.is_absent() => {}
            Err(error) => failures.push(cannot_ask(socket, &error)),
        }
    }
    let (pages, unreadable) = find_pages();
    let servers: Vec<_> = pages.iter().filter_map(|page| Some((page, page.status().ok()?))).collect();
    let has_daemons = !(helpers.is_empty() && sidecars.is_empty() && switches.is_empty());
    if !has_daemons && stack_servers.is_empty() && servers.is_empty() {
        let why = failures.into_iter().next().unwrap_or_else(why_no_helper);
        return Report::failed(format!("{why}; and {}", servers::none_found(&unreadable)));
    }
    let daemons = helpers.iter().map(ToString::to_string).chain(sidecars.iter().map(ToString::to_string));
    let daemons = daemons.chain(switches.iter().map(ToString::to_string));
    let daemons = daemons.chain(stack_servers.iter().map(ToString::to_string));
    let lines = daemons.chain(servers.iter().map(|(page, status)| servers::as_text(page, status))).collect();
    let servers: Vec<Value> = servers.iter().map(|(page, status)| servers::as_json(page, status)).collect();
    let helpers: Vec<Value> = helpers.iter().map(|status| status.to_value()).collect();
    let (helper, sidecar) = (helpers.first(), sidecars.first());
    let result = json!({
        "helper": helper, "helpers": helpers, "sidecar": sidecar, "sidecars": sidecars, "switches": switches,
        "servers": servers, "stack_servers": stack_servers
    });
    // Daemons that do not answer are warnings: the others are shown.
    let warnings = failures.into_iter().chain(describe_unreadable(&unreadable)).collect();
    Report { lines, result, warnings, ..Report::default() }
}

/// Lines about status pages that cannot be read; pages of other users share one line, because they are normal.
fn describe_unreadable(pages: &[UnreadablePage]) -> Vec<String> {
    let is_of_another_user = |page: &&UnreadablePage| page.error.kind() == ErrorKind::PermissionDenied;
    let broken = pages.iter().filter(|page| !is_of_another_user(page));
    let mut lines: Vec<String> =
        broken.map(|page| format!("{}: {}", page.path.display(), page.error)).collect();
    match pages.iter().filter(is_of_another_user).count() {
        0 => {}
        1 => lines.push("1 server of another user".into()),
        others => lines.push(format!("{others} servers of other users")),
    }
    lines
}

/// Why the default helper does not answer, for the case that no admin socket was found.
fn why_no_helper() -> String {
    let default_socket = sockets::helper();
    match Answer::send_request(&default_socket) {
        Err(error) => cannot_ask(&default_socket, &error),
        Ok(_) => "no helper answered".into(),
    }
}

fn cannot_ask(socket: &Path, error: &RequestError) -> String {
    format!("cannot ask {}: {error}", socket.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_other_users_are_one_line() {
        let page = |kind: ErrorKind| UnreadablePage { path: "/dev/shm/a".into(), error: kind.into() };
        let forbidden = || page(ErrorKind::PermissionDenied);
        assert_eq!(describe_unreadable(&[forbidden()]), ["1 server of another user"]);
        let lines = describe_unreadable(&[forbidden(), page(ErrorKind::InvalidData), forbidden()]);
        assert_eq!((lines.len(), &*lines[1]), (2, "2 servers of other users"));
        assert!(lines[0].starts_with("/dev/shm/a: "), "{lines:?}");
    }
}
