//! `spillway-lab kv`: a key-value server on the user-level stack.

use std::process::ExitCode;

use crate::servers::{RequestServer, StackArgs, Store};

/// Maximum total size of the stored items, in bytes.
const STORE_BYTES_MAX: usize = 64 << 20;

/// A key-value server for experiments on moves of connections
///
/// It speaks memcached's text protocol: get, set, delete, version, quit. Each server has a store of its own, of at most
/// 64 MiB: a client whose connection moves sees the values of the other server from then on. Unfinished requests and unread
/// replies of all clients have at most 64 MiB: a client beyond them is reset.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    args: StackArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    args.args.run("kv", RequestServer::new(Store::new(STORE_BYTES_MAX)))
}
