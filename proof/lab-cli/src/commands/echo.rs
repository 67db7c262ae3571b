//! `spillway-lab echo`: the server of experiments that need one without an application. Nobody's everyday command, so it is
//! not listed.

use std::process::ExitCode;

/// An echo server for experiments, for plain clients and links: --listen ADDR --link ADDR [--key FILE]
/// [--client-key FILE] [--allow-clients CIDR]
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// As the server library's example takes them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    words: Vec<String>,
}

pub(crate) fn run(args: Args) -> ExitCode {
    spillway_bench::echo::serve(args.words.into_iter())
}
