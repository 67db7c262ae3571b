//! `spillway-lab http`: an HTTP server on the user-level stack.

use std::process::ExitCode;

use spillway_stack_server::EngineError;

use crate::servers::{Http, Partition, RequestServer, StackArgs};

/// An HTTP server for experiments on moves of connections
///
/// It speaks HTTP/1.1 without encryption: GET and HEAD, persistent connections, several requests at once. The body of each
/// response is the request's target, so that clients can check it. A target `/NAME?bytes=N` names an object of N bytes, up to
/// 4 MiB, whose bytes follow from the target (`spillway-lab load --protocol http --object-size N`). Requests with bodies, other methods, and heads of more
/// than 8 KiB or 64 fields are refused, and their connections closed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    args: StackArgs,

    /// Serve only the targets of this server, which has this name among the peers, and hand the requests for others off to
    /// their servers, with their connections. Responses name the server: Served-By
    #[arg(long, value_name = "NAME", requires = "peers", conflicts_with = "work")]
    partition: Option<String>,

    /// With --partition: the server of this name has no targets, and hands all requests off to those that have them; repeat
    /// for more. All servers need the same frontends
    #[arg(long, value_name = "NAME", requires = "partition")]
    frontend: Vec<String>,

    /// With --frontend: hand each request that this server has read to the first frontend, which examines it and hands it off,
    /// as in the experiments of Prism. Otherwise a backend hands it directly to the server that has the target
    #[arg(long, requires = "frontend")]
    return_to_frontend: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match partition(args) {
        Ok(partition) => args.args.run("http", RequestServer::new(Http { partition })),
        Err(error) => {
            eprintln!("spillway-lab http: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The targets of this server; `None`: it serves all.
fn partition(args: &Args) -> Result<Option<Partition>, EngineError> {
    let Some(name) = args.partition.as_deref() else { return Ok(None) };
    let partition = args.args.partition(name)?;
    let frontends = args.frontend.iter().map(|name| Ok(args.args.partition(name)?.own()));
    let frontends = frontends.collect::<Result<Vec<_>, EngineError>>()?;
    let nobody =
        || EngineError::Settings("--frontend: all servers are frontends: no server has targets".into());
    let partition = partition.with_frontends(&frontends).ok_or_else(nobody)?;
    let examiner = frontends.first().filter(|_| args.return_to_frontend);
    Ok(Some(match examiner {
        Some(frontend) => partition.examined_by(*frontend),
        None => partition,
    }))
}
