//! `spillway move`: moves live connections from a server to another one.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use spillway_stack_server::{MoveFailure, MoveOutcome, Override, PolicyStatus, Request, send_request};
use spillway_values::parse_duration;

use super::output::Report;
use super::sockets;

/// Move live connections of a service to another server
///
/// For servers on the user-level stack behind a switch. Ask the server that has the connections. Each moves when its
/// request has ended; the command returns when the moves have ended. The client's end of a connection notices nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The service's name
    #[arg(value_name = "SERVICE")]
    service: String,

    /// The client's end of the connection, as `spillway flows` or `ss` prints it
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present_any = ["all", "manual_override"], conflicts_with = "all")]
    connection: Option<SocketAddr>,

    /// All connections that the server has, at most 1,024 at a time
    #[arg(long)]
    all: bool,

    /// Override the server's policy for moves: off forbids its moves, on ignores its thresholds, auto ends the override
    #[arg(long = "override", value_name = "WORD", conflicts_with_all = ["connection", "all", "to"])]
    manual_override: Option<Override>,

    /// How long the override holds; afterwards auto [default: until `auto`]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration, requires = "manual_override",
        conflicts_with_all = ["connection", "all", "to"])]
    lasts: Option<Duration>,

    /// The server that gets them, by its name among the servers of the service [default: the least loaded one]
    #[arg(long, value_name = "SERVER")]
    to: Option<String>,

    /// Admin socket of the server [default: server.sock in /run/spillway or $XDG_RUNTIME_DIR/spillway]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let json = args.json;
    migrate(args).print("move", json)
}

fn migrate(args: Args) -> Report {
    let socket = args.socket.unwrap_or_else(sockets::server);
    if let Some(manual_override) = args.manual_override {
        return set_override(&socket, args.service, manual_override, args.lasts);
    }
    let request = Request::Move { service: args.service, connection: args.connection, to: args.to };
    match send_request::<MoveOutcome>(&socket, &request) {
        Ok(outcome) => report(&outcome),
        Err(error) => Report::failed(format!("{}: {error}", socket.display())),
    }
}

fn set_override(
    socket: &Path,
    service: String,
    manual_override: Override,
    lasts: Option<Duration>,
) -> Report {
    let lasts_ms = lasts.map(|lasts| u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX));
    let manual_override = manual_override.name().to_owned();
    match send_request::<PolicyStatus>(socket, &Request::MoveOverride { service, manual_override, lasts_ms })
    {
        Ok(policy) => Report {
            lines: vec![format!("policy {}, override {}", policy.name, policy.manual_override)],
            result: json!(policy),
            ..Report::default()
        },
        Err(error) => Report::failed(format!("{}: {error}", socket.display())),
    }
}

fn report(outcome: &MoveOutcome) -> Report {
    let failed = outcome
        .failed
        .iter()
        .map(|failed| format!("the connection of {} has not moved: {}", failed.client, failed.why));
    let pending = outcome
        .pending
        .iter()
        .map(|client| format!("the connection of {client} is still pending: {}", MoveFailure::Late));
    Report {
        lines: vec![format!("{} connections moved", outcome.moved)],
        result: json!(outcome),
        errors: failed.chain(pending).collect(),
        ..Report::default()
    }
}

#[cfg(test)]
mod tests {
    use spillway_stack_server::FailedMove;

    use super::*;

    #[test]
    fn one_connection_or_all() {
        let parses = |line: &str| crate::definition().try_get_matches_from(line.split(' ')).is_ok();
        assert!(parses("spillway move cache --connection 10.0.0.2:40000 --to b"));
        assert!(parses("spillway move cache --all"));
        assert!(!parses("spillway move cache"));
        assert!(parses("spillway move cache --override off --for 10m"));
        assert!(!parses("spillway move cache --override maybe"));
        assert!(!parses("spillway move cache --all --override on"));
        assert!(!parses("spillway move cache --all --for 10m"));
        assert!(!parses("spillway move cache --all --connection 10.0.0.2:1"));
    }

    #[test]
    fn connections_that_have_not_moved_are_errors() {
        let failed =
            FailedMove { client: "10.0.0.2:40000".parse().unwrap(), why: "the connection has ended".into() };
        let pending = vec!["10.0.0.2:40001".parse().unwrap()];
        let report = report(&MoveOutcome { moved: 3, failed: vec![failed], pending });
        assert_eq!(report.lines, ["3 connections moved"]);
        assert!(report.errors[0].contains("10.0.0.2:40000") && report.errors[0].contains("has ended"));
        assert!(report.errors[1].starts_with("the connection of 10.0.0.2:40001 is still pending"));
    }
}
