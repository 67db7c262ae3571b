//! `spillway drain`: drains a helper or one of its services.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use spillway_helper::control::{Draining, Request, RequestError, send_request};
use spillway_helper::{HelperStatus, request_status};
use spillway_values::parse_duration;

use super::output::Report;
use super::sockets;
use super::waiting::with_notice;

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Drain a helper or one of its services
///
/// New clients are refused and health checks fail. Library clients are asked to move at once; plain clients are
/// served until they close, or are reset at the deadline. The helper keeps running; `spillway reload` makes it accept
/// clients again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of a service, or of the helper for all its services
    #[arg(value_name = "HELPER|SERVICE")]
    target: String,

    /// Reset the remaining clients after this time [default: the helper's drain_deadline]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    deadline: Option<Duration>,

    /// Return when the drain is over. The exit code is 1 when clients were reset
    #[arg(long)]
    wait: bool,

    /// Admin socket of the helper [default: helper.sock in /run/spillway or $XDG_RUNTIME_DIR/spillway]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let socket = args.socket.clone().unwrap_or_else(sockets::helper);
    let report = drain(args, &socket).unwrap_or_else(|error| {
        Report::failed(format!("cannot drain {}: {}: {error}", args.target, socket.display()))
    });
    report.print("drain", args.json)
}

fn drain(args: &Args, socket: &Path) -> Result<Report, RequestError> {
    let deadline_ms = args.deadline.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let request = Request::Drain { target: args.target.clone(), deadline_ms };
    let draining: Draining = with_notice(socket, || send_request(socket, &request))?;
    let mut counts = drained_clients(&request_status(socket)?, &draining.services);
    while args.wait && counts.remaining > 0 {
        std::thread::sleep(POLL_INTERVAL);
        counts = drained_clients(&request_status(socket)?, &draining.services);
    }
    let line = format!(
        "{}: {} moved, {} left, {} failed, {} to go",
        draining.services.join(", "),
        counts.moved,
        counts.left,
        counts.failed,
        counts.remaining
    );
    let result = json!({
        "services": draining.services,
        "deadline_ms": draining.deadline_ms,
        "moved": counts.moved,
        "left": counts.left,
        "failed": counts.failed,
        "remaining": counts.remaining,
    });
    Ok(Report { lines: vec![line], result, is_failure: counts.failed > 0, ..Report::default() })
}

fn drained_clients(status: &HelperStatus, services: &[String]) -> spillway_helper::Drained {
    let mut total = spillway_helper::Drained::default();
    let drained = status.services.iter().filter(|service| services.contains(&service.name));
    for service in drained.filter_map(|service| service.drained) {
        total.moved += service.moved;
        total.left += service.left;
        total.failed += service.failed;
        total.remaining += service.remaining;
    }
    total
}
