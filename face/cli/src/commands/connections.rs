//! `spillway connections`: lists virtual connections, which `ss` and tcpdump do not show.

mod helper;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};
use spillway_shim_core::status::{ConnectionStatus, ServerPage, ServerStatus};

use super::output::Report;
use super::{servers, sockets};

/// List clients with their own addresses
///
/// The clients of a helper's service, or the helped clients of servers, one line for each connection, like redis's
/// CLIENT LIST. A helper answers its owner and group, a server its user and root.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A service of the helper here, or a server: pid:812, port:11211 (its ordinary port or its link port), its
    /// program, or the number alone [default: all servers]
    #[arg(value_name = "SERVICE|SERVER")]
    of: Option<String>,

    /// All servers of this name, if several have it
    #[arg(long)]
    all: bool,

    /// Admin socket of the helper, if it is not a usual one; only this helper is asked
    #[arg(long, value_name = "PATH", requires = "of")]
    socket: Option<PathBuf>,

    /// List at most this many connections of a helper, or of each server
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,

    /// Print JSON: for a service its connections, for servers a list with one object for each
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> ExitCode {
    report(&args).print("connections", args.json)
}

fn report(args: &Args) -> Report {
    let helper_error = match list_helper_clients(args) {
        Ok(Some(report)) => return report,
        Ok(None) => None,
        Err(why) => Some(why),
    };
    let pages = match servers::choose(args.of.as_deref(), args.all) {
        Ok(pages) => pages,
        Err(error) => {
            let why = helper_error.map(|why| format!("{why}; and ")).unwrap_or_default();
            return Report::failed(format!("{why}{error}"));
        }
    };
    let refreshed = servers::refresh(&pages);
    let lists = pages.iter().zip(refreshed).map(|(page, is_fresh)| list(page, is_fresh, args.limit));
    let (servers, report) = Report::gather(lists);
    Report {
        lines: servers.iter().flat_map(ServerClients::lines).collect(),
        result: servers.iter().map(ServerClients::as_json).collect(),
        warnings: servers.iter().flat_map(ServerClients::warnings).collect(),
        ..report
    }
}

/// Lists the clients of a helper's service. `None`: no service is named, or no helper runs. An error comes
/// from a running helper, for example because it has no such service; the name may still be that of a server.
fn list_helper_clients(args: &Args) -> Result<Option<Report>, String> {
    let Some(service) = &args.of else { return Ok(None) };
    let socket = args.socket.clone().unwrap_or_else(sockets::helper);
    match helper::clients_of_service(&socket, service, args.limit) {
        Ok(clients) => Ok(Some(helper::report(&clients))),
        Err(error) if args.socket.is_some() => {
            Ok(Some(Report::failed(format!("{}: {error}", socket.display()))))
        }
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(format!("{}: {error}", socket.display())),
    }
}

struct ServerClients {
    pid: u32,
    program: String,
    status: ServerStatus,
    /// Whether the server has updated the byte counts for this command.
    is_fresh: bool,
    connections: Vec<ConnectionStatus>,
    /// Connections beyond the limit.
    cut: u64,
    /// Connections that the server could not put on its page.
    unplaced: u64,
}

fn list(page: &ServerPage, is_fresh: std::io::Result<bool>, limit: usize) -> Result<ServerClients, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", page.path.display());
    let is_fresh = is_fresh.map_err(failed)?;
    let status = page.status().map_err(failed)?;
    let mut connections = page.connections().map_err(failed)?;
    let (placed, total) = (connections.len() as u64, servers::connections(&status));
    connections.truncate(limit);
    let cut = placed - connections.len() as u64;
    let unplaced = total.saturating_sub(placed);
    Ok(ServerClients { pid: page.pid, program: page.program(), status, is_fresh, connections, cut, unplaced })
}

impl ServerClients {
    fn with_helpers(&self) -> impl Iterator<Item = (&ConnectionStatus, Option<SocketAddr>)> {
        let peers: HashMap<u32, _> = self.status.links.iter().map(|link| (link.index, link.peer)).collect();
        self.connections.iter().map(move |connection| (connection, peers.get(&connection.link).copied()))
    }

    fn lines(&self) -> impl Iterator<Item = String> {
        self.with_helpers().map(|(connection, helper)| {
            let helper = helper.map_or_else(|| "-".to_owned(), |address| address.to_string());
            format!(
                "pid={} addr={} helper={helper} id={} age={} in={} out={}",
                self.pid,
                connection.client,
                connection.id,
                connection.age.as_secs(),
                connection.bytes_received,
                connection.bytes_sent
            )
        })
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.is_fresh {
            warnings
                .push(format!("server {} is too busy to bring the numbers of bytes up to date", self.pid));
        }
        if self.cut > 0 {
            warnings.push(format!("{} more are not listed; --limit N lists more", self.cut));
        }
        if self.unplaced > 0 {
            warnings.push(format!("{} more connections have no place in the list", self.unplaced));
        }
        warnings
    }

    fn as_json(&self) -> Value {
        let list: Vec<Value> = self
            .with_helpers()
            .map(|(connection, helper)| servers::connection_json(connection, helper))
            .collect();
        json!({
            "pid": self.pid,
            "program": self.program,
            "helped_port": self.status.helped_port,
            "link_port": self.status.link_port,
            "connections_total": servers::connections(&self.status),
            "is_fresh": self.is_fresh,
            "connections": list,
        })
    }
}
