//! `spillway-lab switch-answers`: answers control messages of the switch in user space, for the experiment `switch-cost`.
//! Hidden, because only the experiment starts it.

use std::process::ExitCode;

/// A daemon that answers control messages of the switch: LISTEN SERVER
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The arguments that the experiment passes
    arguments: Vec<String>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match spillway_bench::experiments::switch::cost::serve(&args.arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spillway-lab switch-answers: {error}");
            ExitCode::from(2)
        }
    }
}
