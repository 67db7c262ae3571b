//! `spillway connections`: virtual connections, which `ss` and tcpdump do not see.

use std::collections::HashMap;
use std::process::ExitCode;

use serde_json::{Value, json};
use spillway_shim_core::status::ServerPage;

use super::servers;

/// List the helped clients of servers on this machine, with their own addresses.
///
/// One line a connection, as redis has in CLIENT LIST. Only the server's user and root may ask.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Whose: a process id, a program, or a port (the server's own or its link port). Default: all servers'
    server: Option<String>,

    /// As JSON: one object for each server
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let pages = match servers::named(args.server.as_deref()) {
        Ok(pages) => pages,
        Err(error) => {
            eprintln!("spillway: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut all = Vec::new();
    for page in &pages {
        match list(page, args.json) {
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

fn list(page: &ServerPage, as_json: bool) -> std::io::Result<Value> {
    let is_fresh = servers::refresh(page)?;
    if !is_fresh {
        eprintln!("spillway: server {} is too busy to bring the numbers of bytes up to date", page.pid);
    }
    let status = page.status()?;
    let connections = page.connections()?;
    let peers: HashMap<u32, _> = status.links.iter().map(|link| (link.index, link.peer)).collect();
    let total = servers::connections(&status);
    if as_json {
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
    if total > connections.len() as u64 {
        eprintln!(
            "spillway: {} more connections have no place in the list",
            total - connections.len() as u64
        );
    }
    Ok(Value::Null)
}
