//! `spillway doctor`: what this machine can do, and why not.

mod finding;
mod machine;
mod probe;
mod units;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::{Value, json};
use spillway_wire::preamble::Role;

use super::output;
use finding::{Finding, State};

/// Check what Spillway needs on this machine, and reach a server's link port from here.
///
/// Changes nothing. Ends with 1 if something is missing, with 0 if there are warnings at most.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also reach this server's link port: HOST:PORT
    #[arg(long, value_name = "HOST:LINKPORT")]
    server: Option<String>,

    /// With this key, as a helper
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,

    /// With this key, as a library client
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    client_key: Option<PathBuf>,

    /// The engine that a helper here is to run on
    #[arg(long, value_enum, default_value_t = Engine::Sockets)]
    engine: Engine,

    /// The network interface of the engine
    #[arg(long, value_name = "IF", required_if_eq("engine", "xdp"))]
    interface: Option<String>,

    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// Kernel sockets: works everywhere.
    Sockets,
    /// A TCP stack of our own on AF_XDP.
    Xdp,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let mut findings = machine::findings();
    findings.extend(units::findings());
    findings.extend(machine::key_files(&[&args.key, &args.client_key].map(Option::as_deref)));
    if args.engine == Engine::Xdp {
        findings.extend(machine::xdp(args.interface.as_deref().unwrap_or_default()));
    }
    if let Some(server) = &args.server {
        let (key, role) = match &args.client_key {
            Some(key) => (Some(key.as_path()), Role::Client),
            None => (args.key.as_deref(), Role::Helper),
        };
        findings.extend(probe::findings(server, key, role));
    }
    let is_fit = findings.iter().all(|finding| finding.state != State::Missing);
    let ended = if is_fit { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if args.json {
        let list: Vec<Value> = findings.iter().map(Finding::as_json).collect();
        let document = json!({ "is_fit": is_fit, "findings": list });
        return output::print_and_end([format!("{document:#}")], ended);
    }
    output::print_and_end(findings, ended)
}
