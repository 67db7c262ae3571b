//! `spillway-lab stack-work`: what the experiment `stack` runs under a program that counts instructions. Nobody's everyday
//! command, so it is not listed.

use std::process::ExitCode;

/// Work for an instruction count: WORK CONNECTIONS MESSAGES
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// As the experiment gives them.
    words: Vec<String>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match spillway_bench::experiments::tcp::stack::serve(&args.words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spillway-lab stack-work: {error}");
            ExitCode::from(2)
        }
    }
}
