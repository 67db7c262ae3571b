//! `spillway connections`: virtual connections, which `ss` and tcpdump do not see.

mod helper;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use spillway_helper::control::AskError;
use spillway_shim_core::status::ServerPage;

use super::servers;

/// List the clients of a helper's service, or the helped clients of servers on this machine, with their own addresses.
///
/// One line a connection, as redis has in CLIENT LIST. A helper answers its owner and group, a server its user and root.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Whose: a service of the helper here, or a server: its process id, program, or port (its own or its link
    /// port). Default: all servers'
    #[arg(value_name = "SERVICE|SERVER")]
    of: Option<String>,

    /// The helper's admin socket, if it is not the usual one; then only this helper is asked
    #[arg(long, value_name = "PATH", requires = "of")]
    socket: Option<PathBuf>,

    /// List no more than these; of a helper, or of each server
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,

    /// As JSON: an object for a service, a list with one for each server
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> ExitCode {
    if let Some(ended) = of_helper(&args) {
        return ended;
    }
    let pages = match servers::named(args.of.as_deref()) {
        Ok(pages) => pages,
        Err(error) => {
            eprintln!("spillway: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut all = Vec::new();
    for page in &pages {
        match list(page, &args) {
            Ok(value) => all.push(value),
            Err(error) => {
                eprintln!("spillway: {}: {error}", page.path.display());
                return ExitCode::FAILURE;
            }
        }
    }
    if args.json {
        println!("{:#}", Value::Array(all));
    }
    ExitCode::SUCCESS
}

/// `None`: the word is no service of a helper here.
fn of_helper(args: &Args) -> Option<ExitCode> {
    let service = args.of.as_deref()?;
    let socket = args.socket.as_deref().unwrap_or(Path::new(spillway_helper::DEFAULT_SOCKET));
    match helper::of(socket, service, args.limit) {
        Ok(all) => {
            helper::print(&all, args.json);
            Some(ExitCode::SUCCESS)
        }
        Err(AskError::Socket(_) | AskError::Refused(_)) if args.socket.is_none() => None,
        Err(error) => {
            eprintln!("spillway: {}: {error}", socket.display());
            Some(ExitCode::FAILURE)
        }
    }
}

fn list(page: &ServerPage, args: &Args) -> std::io::Result<Value> {
    let is_fresh = servers::refresh(page)?;
    if !is_fresh {
        eprintln!("spillway: server {} is too busy to bring the numbers of bytes up to date", page.pid);
    }
    let status = page.status()?;
    let mut connections = page.connections()?;
    let placed = connections.len() as u64;
    connections.truncate(args.limit);
    let peers: HashMap<u32, _> = status.links.iter().map(|link| (link.index, link.peer)).collect();
    let total = servers::connections(&status);
    if args.json {
        let list: Vec<Value> = connections
            .iter()
            .map(|one| servers::connection_json(one, peers.get(&one.link).copied()))
            .collect();
        return Ok(json!({
            "pid": page.pid,
            "program": page.program(),
            "helped_port": status.helped_port,
            "link_port": status.link_port,
            "connections_total": total,
            "is_fresh": is_fresh,
            "connections": list,
        }));
    }
    for one in &connections {
        let helper = peers.get(&one.link).map_or_else(|| "-".to_owned(), ToString::to_string);
        println!(
            "pid={} addr={} helper={helper} id={} age={} in={} out={}",
            page.pid,
            one.client,
            one.id,
            one.age.as_secs(),
            one.bytes_received,
            one.bytes_sent
        );
    }
    let listed = connections.len() as u64;
    if placed > listed {
        eprintln!("spillway: {} more are not listed; --limit N lists more", placed - listed);
    }
    if total > placed {
        eprintln!("spillway: {} more connections have no place in the list", total - placed);
    }
    Ok(Value::Null)
}
