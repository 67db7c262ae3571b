//! `spillway-lab echo`: the server of experiments without an application.

use std::process::ExitCode;

use clap::ValueEnum;

use crate::servers::{Echo, XdpArgs, run as run_on_stack};

/// An echo server for experiments
///
/// On kernel sockets, for plain clients and links: --listen ADDR --link ADDR [--key FILE] [--client-key FILE]
/// [--allow-clients CIDR]. On the user-level stack, whose connections move to other servers: --engine xdp --interface IF
/// --service ADDR [--link ADDR --link-key FILE] [--switch ADDR --peers FILE --key FILE]
/// [--work TIME].
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The TCP that the server stands on; must be the first option
    #[arg(long, value_enum, default_value_t = Engine::Sockets)]
    engine: Engine,

    /// The options of the engine
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// The kernel's TCP
    Sockets,
    /// The user-level stack on AF_XDP
    Xdp,
}

#[derive(Debug, clap::Parser)]
#[command(name = "spillway-lab echo --engine xdp")]
struct OnStack {
    #[command(flatten)]
    args: XdpArgs,
}

pub(crate) fn run(args: Args) -> ExitCode {
    match args.engine {
        Engine::Sockets => spillway_bench::echo::serve(args.arguments.into_iter()),
        Engine::Xdp => {
            let program = std::iter::once("echo".to_owned());
            let options = <OnStack as clap::Parser>::parse_from(program.chain(args.arguments));
            run_on_stack(&options.args, "echo", Echo::default())
        }
    }
}
