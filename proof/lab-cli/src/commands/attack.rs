//! `spillway-lab attack`: the attackers of the experiment `attacks`. Hidden, because only the experiment starts it.

use std::process::ExitCode;

/// An attacker for experiments: NAME --target ADDR... [--key FILE] [--count N], or full-stderr -- COMMAND
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The arguments that the experiment passes
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    arguments: Vec<String>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match spillway_bench::attackers::serve(&args.arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spillway-lab attack: {error}");
            ExitCode::from(2)
        }
    }
}
