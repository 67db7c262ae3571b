//! Commands that have moved to `spillway-lab`.

use std::process::ExitCode;

/// Accepts and ignores all options.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    options: Vec<String>,
}

pub(crate) fn run(old: &str, new: &str) -> ExitCode {
    eprintln!("spillway: `spillway {old}` has moved to `spillway-lab`: run `spillway-lab {new}`");
    ExitCode::from(2)
}
