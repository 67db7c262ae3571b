//! `spillway-lab stack-work`: the workload of the experiment `stack`, run under a program that counts instructions.
//! Hidden, because only the experiment starts it.

use std::process::ExitCode;

/// Work for an instruction count: WORK CONNECTIONS MESSAGES
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The arguments that the experiment passes
    arguments: Vec<String>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match spillway_bench::experiments::tcp::stack::serve(&args.arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spillway-lab stack-work: {error}");
            ExitCode::from(2)
        }
    }
}
