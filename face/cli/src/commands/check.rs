//! `spillway check`: finds mistakes in a configuration file.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::output::{self, Report};

/// Check the configuration file of a helper or a switch
///
/// Prints each problem with its line, its column and what to do. Key files are read, and host names and interfaces
/// looked up, as the program does. The exit code is 1 when something is wrong. An interface of a switch that does not
/// exist is only a warning.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The configuration file
    #[arg(required_unless_present = "reference")]
    file: Option<PathBuf>,

    /// Print JSON
    #[arg(long, conflicts_with_all = ["show", "reference"])]
    json: bool,

    /// Print every value as it would be in force, defaults included
    #[arg(long)]
    show: bool,

    /// Read neither key files nor interfaces: for checks on another machine, or as a user who must not read them
    #[arg(long)]
    without_keys: bool,

    /// Print the reference of all keys of a helper's or a switch's file, as docs/configuration.md and
    /// docs/switch-configuration.md have it
    #[arg(long, value_name = "OF", value_enum, num_args = 0..=1, default_missing_value = "helper",
        conflicts_with_all = ["file", "show", "without_keys"])]
    reference: Option<Program>,
}

/// A program with a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Program {
    /// `spillway helper`
    Helper,
    /// `spillway switch`
    Switch,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let Some(path) = &args.file else {
        let reference = match args.reference {
            Some(Program::Switch) => spillway_switch::config::reference(),
            Some(Program::Helper) | None => spillway_helper::config::reference(),
        };
        return output::print([reference.trim_end()]);
    };
    let outcome = match program_of(path) {
        Program::Helper => check_helper(path, args),
        Program::Switch => check_switch(path, args),
    };
    match outcome {
        Ok(Checked { shown, .. }) if args.show => output::print([shown.trim_end()]),
        Ok(Checked { summary, result, warnings, .. }) => {
            let lines = vec![format!("{}: fine, {summary}", path.display())];
            Report { lines, result, warnings, ..Report::default() }.print("check", args.json)
        }
        Err(problems) => {
            eprintln!("{problems}");
            let problems: Vec<&str> = problems.lines().collect();
            let result = json!({ "file": path, "problems": problems });
            Report { result, is_failure: true, ..Report::default() }.print("check", args.json)
        }
    }
}

/// A file without problems.
struct Checked {
    /// Every value in force.
    shown: String,
    summary: String,
    result: Value,
    warnings: Vec<String>,
}

/// The program that a file is for, by its sections. A file that cannot be read is left to the helper's errors.
fn program_of(path: &Path) -> Program {
    match spillway_config::read_text_file(path) {
        Ok(text) if spillway_switch::config::is_of_switch(&text) => Program::Switch,
        _ => Program::Helper,
    }
}

fn check_helper(path: &Path, args: &Args) -> Result<Checked, String> {
    let config = spillway_helper::config::read_file(path, !args.without_keys).map_err(text)?;
    let services: Vec<&str> = config.services.iter().map(|service| service.name.as_str()).collect();
    Ok(Checked {
        summary: format!("{} services", services.len()),
        result: json!({ "file": path, "services": services, "problems": [] }),
        shown: config.to_string(),
        warnings: Vec::new(),
    })
}

fn check_switch(path: &Path, args: &Args) -> Result<Checked, String> {
    let config = spillway_switch::config::read_file(path, !args.without_keys).map_err(text)?;
    let ports: Vec<&str> = config.ports.iter().map(|port| port.interface.as_str()).collect();
    let services: Vec<&str> = config.services.iter().map(|service| service.name.as_str()).collect();
    let servers: Vec<&str> = config.servers.iter().map(|server| server.name.as_str()).collect();
    Ok(Checked {
        summary: format!("{} ports, {} services, {} servers", ports.len(), services.len(), servers.len()),
        result: json!({
            "file": path, "ports": ports, "services": services, "servers": servers, "problems": []
        }),
        shown: config.to_string(),
        warnings: if args.without_keys { Vec::new() } else { [missing(&config), tunnels(&config)].concat() },
    })
}

/// A warning for each tunnel into which a packet of usual length does not fit.
fn tunnels(config: &spillway_switch::config::SwitchConfig) -> Vec<String> {
    const USUAL_BYTES: u16 = 1500;
    let too_short = |server: &spillway_switch::config::Server| {
        let bytes = config.tunnel_packet_max(server).filter(|bytes| *bytes < USUAL_BYTES)?;
        Some(format!(
            "server {}: packets of more than {bytes} bytes do not fit into the tunnel; clients get an ICMP error for each, and \
             send shorter ones if no firewall drops it: raise the MTU of {} and of the path to the server to {}, or let \
             clients send shorter segments (`ip route change ... advmss {}`)",
            server.name,
            config.interface(server.port),
            USUAL_BYTES + if server.address.is_ipv4() { 20 } else { 40 },
            bytes.saturating_sub(60)
        ))
    };
    config.servers.iter().filter_map(too_short).collect()
}

/// A warning and no error for each interface that does not exist: the daemon attaches it when it comes.
fn missing(config: &spillway_switch::config::SwitchConfig) -> Vec<String> {
    let warning = |interface: &str| {
        format!(
            "interface {interface} does not exist: the switch starts without this port, and attaches it when it comes; `ip \
             link` lists the interfaces"
        )
    };
    config.missing_interfaces().into_iter().map(warning).collect()
}

fn text(problems: impl Display) -> String {
    problems.to_string()
}
