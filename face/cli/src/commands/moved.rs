//! Commands that are part of `spillway-lab` now.

use std::process::ExitCode;

/// Any options: they are not read.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    options: Vec<String>,
}

/// Names the command to use instead.
pub(crate) fn run(old: &str, new: &str) -> ExitCode {
    eprintln!("spillway: `spillway {old}` has moved to `spillway-lab`: run `spillway-lab {new}`");
    ExitCode::from(2)
}
