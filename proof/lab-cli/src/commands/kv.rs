//! `spillway-lab kv`: a key-value server on the user-level stack.

use std::process::ExitCode;

use clap::ValueEnum;

use crate::servers::{RequestServer, Store, XdpArgs, run as run_on_stack};

/// Maximum total size of the stored items, in bytes.
const STORE_BYTES_MAX: usize = 64 << 20;

/// A key-value server for experiments on moves of connections
///
/// It speaks memcached's text protocol: get, set, delete, version, quit. Each server has a store of its own, of at most
/// 64 MiB: a client whose connection moves sees the values of the other server from then on. Unfinished requests and unread
/// replies of all clients have at most 64 MiB: a client beyond them is reset.
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
    run_on_stack(&args.args, "kv", RequestServer::new(Store::new(STORE_BYTES_MAX)))
}
