//! `spillway-lab echo`: the server of experiments without an application.

use std::process::ExitCode;

use clap::ValueEnum;

use crate::servers::{Echo, Engine as MovingEngine, XdpArgs, run_on};

/// An echo server for experiments
///
/// On kernel sockets, for plain clients and links: --listen ADDR --link ADDR [--key FILE] [--client-key FILE]
/// [--allow-clients CIDR]. With connections that move to other servers, on the user-level stack (--engine xdp) or on sockets of
/// the kernel (--engine kernel): --interface IF --service ADDR [--link ADDR --link-key FILE] [--switch ADDR --peers FILE
/// --key FILE] [--work TIME].
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
    /// The kernel's TCP; connections do not move
    Sockets,
    /// The user-level stack on AF_XDP
    Xdp,
    /// The kernel's TCP; connections move
    Kernel,
}

#[derive(Debug, clap::Parser)]
#[command(name = "spillway-lab echo --engine ENGINE")]
struct Moving {
    #[command(flatten)]
    args: XdpArgs,
}

pub(crate) fn run(args: Args) -> ExitCode {
    match args.engine {
        Engine::Sockets => spillway_bench::echo::serve(args.arguments.into_iter()),
        Engine::Xdp => run_moving(MovingEngine::Xdp, args.arguments),
        Engine::Kernel => run_moving(MovingEngine::Kernel, args.arguments),
    }
}

fn run_moving(engine: MovingEngine, arguments: Vec<String>) -> ExitCode {
    let program = std::iter::once("echo".to_owned());
    let options = <Moving as clap::Parser>::parse_from(program.chain(arguments));
    run_on(engine, &options.args, "echo", Echo::default())
}
