//! `spillway-lab http`: an HTTP server on the user-level stack.

use std::process::ExitCode;

use clap::ValueEnum;

use crate::servers::{Http, RequestServer, XdpArgs, run as run_on_stack};

/// An HTTP server for experiments on moves of connections
///
/// It speaks HTTP/1.1 without encryption: GET and HEAD, persistent connections, several requests at once. The body of each
/// response is the request's target, so that clients can check it. Requests with bodies, other methods, and heads of more
/// than 8 KiB or 64 fields are refused, and their connections closed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The TCP that the server stands on
    #[arg(long, value_enum, default_value_t = Engine::Xdp)]
    engine: Engine,

    #[command(flatten)]
    args: XdpArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// The user-level stack on AF_XDP
    Xdp,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let Engine::Xdp = args.engine;
    run_on_stack(&args.args, "http", RequestServer::new(Http))
}
