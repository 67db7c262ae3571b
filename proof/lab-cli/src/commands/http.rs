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

    /// Serve only the targets of this server, which has this name among the peers, and hand the requests for others off to
    /// their servers, with their connections. Responses name the server: Served-By
    #[arg(long, value_name = "NAME", requires = "peers", conflicts_with = "work")]
    partition: Option<String>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match args.partition.as_deref().map(|name| args.args.partition(name)).transpose() {
        Ok(partition) => args.args.run("http", RequestServer::new(Http { partition })),
        Err(error) => {
            eprintln!("spillway-lab http: {error}");
            ExitCode::FAILURE
        }
    }
}
