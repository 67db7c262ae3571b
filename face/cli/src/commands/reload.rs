//! `spillway reload`: a helper reads its configuration again, and this tells how that went.

use std::path::PathBuf;
use std::process::ExitCode;

use spillway_helper::control::{Changed, Request, ask};

use super::output;

/// Have a helper on this machine read its settings again and put them in force, all or none.
///
/// Waits for the outcome. Where something is wrong, the settings before stay in force, and the exit code is 1.
/// Clients are left alone: docs/operations.md says what happens to those whom a change concerns. Services that were
/// drained come back.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The helper's admin socket.
    #[arg(long, value_name = "PATH", default_value = spillway_helper::DEFAULT_SOCKET)]
    socket: PathBuf,

    /// The outcome as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let changed = match ask::<Changed>(&args.socket, &Request::Reload {}) {
        Ok(changed) => changed,
        Err(error) => {
            eprintln!("spillway: not reloaded, everything stays as it was: {error}");
            return ExitCode::FAILURE;
        }
    };
    if args.json {
        return output::print([serde_json::json!(changed)]);
    }
    let restart = changed.restart.iter().map(|key| format!("{key}: its new value needs a restart"));
    let summary = format!("reloaded, {} changes", changed.changes.len());
    output::print(changed.changes.iter().cloned().chain(restart).chain([summary]))
}
