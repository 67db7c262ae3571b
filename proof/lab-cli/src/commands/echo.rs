//! `spillway-lab echo`: the server of experiments without an application. Hidden, because only experiments start it.

use std::process::ExitCode;

/// An echo server for experiments, for plain clients and links: --listen ADDR --link ADDR [--key FILE]
/// [--client-key FILE] [--allow-clients CIDR]
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The options of the server library's example
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    arguments: Vec<String>,
}

pub(crate) fn run(args: Args) -> ExitCode {
    spillway_bench::echo::serve(args.arguments.into_iter())
}
