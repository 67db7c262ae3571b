//! `spillway-lab attack`: the attackers of the experiment `attacks`. Nobody's everyday command, so it is not listed.

use std::process::ExitCode;

/// An attacker for experiments: NAME --target ADDR... [--key FILE] [--count N], or full-stderr -- COMMAND
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// As the experiment gives them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    words: Vec<String>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match spillway_bench::attackers::serve(&args.words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spillway-lab attack: {error}");
            ExitCode::from(2)
        }
    }
}
