//! `spillway doctor`: checks this host's requirements.

mod finding;
mod machine;
mod probe;
mod units;
mod xdp;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::{Value, json};
use spillway_daemon::deprecated::warn_renamed;
use spillway_wire::preamble::Role;

use super::output::Report;
use finding::{Finding, State};

/// Check what Spillway needs on this host
///
/// Prints ok, warning or missing for each check, and the next step. Changes nothing. With --link it also opens a link
/// to a server, and shows its version and whether the key is accepted. The exit code is 1 if something is missing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also open a link to this link port of a server
    #[arg(long, value_name = "HOST:PORT")]
    link: Option<String>,

    /// The name of --link in older versions
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "link", hide = true)]
    server: Option<String>,

    /// The key for that link, in the role of a helper
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,

    /// The key for that link, in the role of a library client
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    client_key: Option<PathBuf>,

    /// The engine a helper of this host is to use
    #[arg(long, value_enum, default_value_t = Engine::Sockets)]
    engine: Engine,

    /// Network interface for the engine
    #[arg(long, value_name = "IF", required_if_eq("engine", "xdp"))]
    interface: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// Kernel sockets; runs everywhere
    Sockets,
    /// Spillway's TCP stack on AF_XDP
    Xdp,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let mut findings = machine::findings();
    findings.extend(units::findings());
    findings.extend(machine::key_files(&[&args.key, &args.client_key].map(Option::as_deref)));
    if args.engine == Engine::Xdp {
        findings.extend(xdp::findings(args.interface.as_deref().unwrap_or_default()));
    }
    if args.server.is_some() {
        warn_renamed("doctor --server", "--link");
    }
    if let Some(server) = args.link.as_ref().or(args.server.as_ref()) {
        let (key, role) = match &args.client_key {
            Some(key) => (Some(key.as_path()), Role::Client),
            None => (args.key.as_deref(), Role::Helper),
        };
        findings.extend(probe::findings(server, key, role));
    }
    let is_fit = findings.iter().all(|finding| finding.state != State::Missing);
    let list: Vec<Value> = findings.iter().map(Finding::as_json).collect();
    let result = json!({ "is_fit": is_fit, "findings": list });
    let lines = findings.iter().map(ToString::to_string).collect();
    Report { lines, result, is_failure: !is_fit, ..Report::default() }.print("doctor", args.json)
}

/// Why a library client cannot open a link to this address, with the next step. Blocks: the connect, each
/// read and each write time out after 5 s.
pub(super) fn link_problem(address: &str, client_key: Option<&Path>) -> Option<String> {
    let findings = probe::findings(address, client_key, Role::Client);
    let problem = findings.into_iter().find(|finding| finding.state == State::Missing)?;
    Some(format!("{}; {}", problem.found, problem.next))
}
