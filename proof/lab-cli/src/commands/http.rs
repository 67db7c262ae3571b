//! `spillway-lab http`: an HTTP server on the user-level stack.

use std::process::ExitCode;

use crate::servers::{Http, RequestServer, StackArgs};

/// An HTTP server for experiments on moves of connections
///
/// It speaks HTTP/1.1 without encryption: GET and HEAD, persistent connections, several requests at once. The body of each
/// response is the request's target, so that clients can check it. Requests with bodies, other methods, and heads of more
/// than 8 KiB or 64 fields are refused, and their connections closed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    args: StackArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    args.args.run("http", RequestServer::new(Http))
}
