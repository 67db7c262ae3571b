//! `spillway move`: moves live connections from a server to another one.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use spillway_stack_server::{MoveOutcome, Request, send_request};

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
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "all", conflicts_with = "all")]
    connection: Option<SocketAddr>,

    /// All connections that the server has, at most 1,024 at a time
    #[arg(long)]
    all: bool,

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
    let request = Request::Move { service: args.service, connection: args.connection, to: args.to };
    match send_request::<MoveOutcome>(&socket, &request) {
        Ok(outcome) => report(&outcome),
        Err(error) => Report::failed(format!("{}: {error}", socket.display())),
    }
}

fn report(outcome: &MoveOutcome) -> Report {
    Report {
        lines: vec![format!("{} connections moved", outcome.moved)],
        result: json!(outcome),
        errors: outcome
            .failed
            .iter()
            .map(|failed| format!("the connection of {} has not moved: {}", failed.client, failed.why))
            .collect(),
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
        assert!(!parses("spillway move cache --all --connection 10.0.0.2:1"));
    }

    #[test]
    fn connections_that_have_not_moved_are_errors() {
        let failed =
            FailedMove { client: "10.0.0.2:40000".parse().unwrap(), why: "the connection has ended".into() };
        let report = report(&MoveOutcome { moved: 3, failed: vec![failed] });
        assert_eq!(report.lines, ["3 connections moved"]);
        assert!(report.errors[0].contains("10.0.0.2:40000") && report.errors[0].contains("has ended"));
    }
}
