//! `spillway drain`: a helper, or one of its services, lets its clients go.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use spillway_helper::config::parse_duration;
use spillway_helper::control::{AskError, Draining, Request, ask};
use spillway_helper::{HelperStatus, query};

use super::output;

/// How often a drain that is waited for is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Have a helper on this machine, or one of its services, take no more clients and let those that are there finish.
///
/// Health checks fail from now on. Library clients are told to go elsewhere; plain clients are served until they
/// end by themselves. Those that are left at the deadline are reset. The helper goes on running, for status and for
/// other services; `spillway reload` has it take clients again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A service, or the helper by its name.
    #[arg(value_name = "HELPER|SERVICE")]
    target: String,

    /// Clients that are left are reset after this time [default: the helper's drain_deadline].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    deadline: Option<Duration>,

    /// Wait for the end, and say what became of the clients. The exit code is 1 when some were reset.
    #[arg(long)]
    wait: bool,

    /// The helper's admin socket.
    #[arg(long, value_name = "PATH", default_value = spillway_helper::DEFAULT_SOCKET)]
    socket: PathBuf,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    drain(args).unwrap_or_else(|error| {
        eprintln!("spillway: cannot drain {}: {error}", args.target);
        ExitCode::FAILURE
    })
}

fn drain(args: &Args) -> Result<ExitCode, AskError> {
    let deadline_ms = args.deadline.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let request = Request::Drain { target: args.target.clone(), deadline_ms };
    let draining: Draining = ask(&args.socket, &request)?;
    let mut counts = count(&query(&args.socket)?, &draining.services);
    while args.wait && counts.remaining > 0 {
        std::thread::sleep(LOOK);
        counts = count(&query(&args.socket)?, &draining.services);
    }
    let line = format!(
        "{}: {} moved, {} left, {} failed, {} to go",
        draining.services.join(", "),
        counts.moved,
        counts.left,
        counts.failed,
        counts.remaining
    );
    let ended = if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    Ok(output::print_and_end([line], ended))
}

fn count(status: &HelperStatus, services: &[String]) -> spillway_helper::Drained {
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
