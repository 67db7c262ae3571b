//! `spillway-lab agent`: sends a control message to a switch as one of its servers.

mod exchange;
mod outcome;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use spillway_lab::Agent;
use spillway_values::{parse_duration, parse_mac};
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{Endpoint, Flow, LIFETIME_MS_MAX, ServerId, Site};

use outcome::Outcome;

/// Send a control message to a switch as one of its servers, and print the answer
///
/// For the laboratory, and to learn how a switch's rules change: the command moves the rule of a flow, and no connection.
/// Each run learns the switch's epoch first, and takes its sequence numbers from the clock, so that separate runs need no
/// file. Do not run it for a server whose own agent runs: its `hello` begins a new term, and the flows that the server owns
/// return to their original servers.
///
/// The exit code is 0 if the switch answers `ok`, and 1 if it refuses or does not answer.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the switch receives control messages: an entry of `control` in its configuration
    #[arg(long, value_name = "ADDRESS:PORT")]
    switch: SocketAddr,

    /// The server's `id` in the switch's configuration
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    id: u8,

    /// The server's key file
    #[arg(long, value_name = "FILE")]
    key: PathBuf,

    /// The address to send from [default: chosen by the kernel]
    #[arg(long, value_name = "ADDRESS")]
    local: Option<IpAddr>,

    /// How long to wait for each answer
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_timeout)]
    timeout: Duration,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(subcommand)]
    request: RequestArgs,
}

#[derive(Debug, Subcommand)]
enum RequestArgs {
    /// Become an owner in a new term: flows of the server's earlier term return to their original servers
    Hello,
    /// State that the server lives, and its load
    Heartbeat {
        #[command(flatten)]
        service: ServiceArgs,
        /// The server's load, in a unit that the servers of the service agree on
        #[arg(long, value_name = "N", default_value_t = 0)]
        load: u32,
        /// Connections that the server can still import
        #[arg(long, value_name = "N", default_value_t = 1)]
        free_places: u32,
        /// The server's capacity relative to the service's other servers
        #[arg(long, value_name = "N", default_value_t = 1)]
        weight: u16,
    },
    /// List the owners of a service
    List {
        #[command(flatten)]
        service: ServiceArgs,
    },
    /// Show the entry of a flow
    Get {
        #[command(flatten)]
        flow: FlowArgs,
    },
    /// As the owner: request that a target imports the connection. Creates the entry
    Prepare {
        #[command(flatten)]
        change: ChangeArgs,
        #[command(flatten)]
        target: OptionalTargetArgs,
        #[command(flatten)]
        lifetime: LifetimeArgs,
    },
    /// As the target: import the connection, or refuse
    Prepared {
        #[command(flatten)]
        change: ChangeArgs,
        #[command(flatten)]
        target: OptionalTargetArgs,
        /// Refuse the connection
        #[arg(long, conflicts_with = "target", required_unless_present = "target")]
        refuse: bool,
    },
    /// As the owner of an owned flow: direct its packets to a target
    Hold {
        #[command(flatten)]
        change: ChangeArgs,
        #[command(flatten)]
        target: TargetArgs,
        #[command(flatten)]
        lifetime: LifetimeArgs,
    },
    /// As the target: take the flow over. As the owner: keep it
    Own {
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// As the owner: end the entry; the flow then belongs to its original server
    Release {
        #[command(flatten)]
        change: ChangeArgs,
    },
}

#[derive(Debug, clap::Args)]
struct ServiceArgs {
    /// The endpoint to which clients of the service connect
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_endpoint)]
    service: Endpoint,
}

// A flow: a connection of a client to a service.
#[derive(Debug, clap::Args)]
struct FlowArgs {
    /// The client's end of the connection
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_endpoint)]
    client: Endpoint,

    #[command(flatten)]
    service: ServiceArgs,
}

// A flow, and the generation of its entry that a request names.
#[derive(Debug, clap::Args)]
struct ChangeArgs {
    #[command(flatten)]
    flow: FlowArgs,

    /// The generation that the request names; 0: no entry [default: that of the entry now]
    #[arg(long, value_name = "N")]
    generation: Option<u64>,
}

// Where the target has the connection.
#[derive(Debug, clap::Args)]
struct TargetArgs {
    /// Where the target imports: one of its places, or the service's endpoint
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_endpoint)]
    target: Endpoint,

    /// The target's Ethernet address
    #[arg(long, value_name = "ADDRESS", value_parser = parse_mac)]
    mac: Mac,
}

// Where the target has the connection, if the request names it.
#[derive(Debug, clap::Args)]
struct OptionalTargetArgs {
    /// Where the target imports: one of its places, or the service's endpoint. A `prepare` without it lets the switch choose
    /// the least loaded server
    #[arg(long, value_name = "ADDRESS:PORT", requires = "mac", value_parser = parse_endpoint)]
    target: Option<Endpoint>,

    /// The target's Ethernet address
    #[arg(long, value_name = "ADDRESS", requires = "target", value_parser = parse_mac)]
    mac: Option<Mac>,
}

#[derive(Debug, clap::Args)]
struct LifetimeArgs {
    /// The flow returns to its owner unless the move ends within this time
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_lifetime)]
    lifetime: u32,
}

impl FlowArgs {
    fn flow(&self) -> Result<Flow, String> {
        Flow::new(self.client, self.service.service).map_err(|error| error.to_string())
    }
}

impl TargetArgs {
    fn site(&self) -> Result<Site, String> {
        Site::new(self.target, self.mac).ok_or_else(|| "the target has no address".to_owned())
    }
}

impl OptionalTargetArgs {
    fn site(&self) -> Option<Site> {
        Site::new(self.target?, self.mac?)
    }
}

fn parse_endpoint(text: &str) -> Result<Endpoint, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| "give an address and a port, such as 10.0.0.5:11211".to_owned())?;
    if address.ip().is_unspecified() {
        return Err("no host has this address".to_owned());
    }
    Ok(address.into())
}

/// Milliseconds.
fn parse_lifetime(text: &str) -> Result<u32, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    let milliseconds = u32::try_from(time.as_millis()).ok();
    milliseconds
        .filter(|milliseconds| (1..=LIFETIME_MS_MAX).contains(milliseconds))
        .ok_or_else(|| format!("give a time from 1ms to {LIFETIME_MS_MAX}ms"))
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    if (Duration::from_millis(1)..=Duration::from_secs(60)).contains(&time) {
        Ok(time)
    } else {
        Err("give a time from 1ms to 60s".to_owned())
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let outcome = exchange(args).unwrap_or_else(Outcome::failed);
    outcome.print(args.json)
}

fn exchange(args: &Args) -> Result<Outcome, String> {
    let key = spillway_keys::read_key_file(&args.key).map_err(|error| error.to_string())?;
    let agent = Agent::open(args.local, args.switch, ServerId(args.id), key.switch_key(), args.timeout);
    exchange::exchange(&mut agent.map_err(|error| error.to_string())?, &args.request)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn parse(request: &str) -> Result<RequestArgs, clap::Error> {
        let line = format!("agent --switch 10.0.0.1:9511 --id 1 --key a.key {request}");
        Program::try_parse_from(line.split(' ')).map(|program| program.args.request)
    }

    const FLOW: &str = "--client 10.0.0.7:4000 --service 10.0.0.5:80";

    #[test]
    fn requests_are_parsed() {
        let target = "--target 10.0.0.6:80 --mac 02:00:00:00:00:06";
        let prepare = parse(&format!("prepare {FLOW} {target} --lifetime 300ms")).unwrap();
        let RequestArgs::Prepare { change, target: named, lifetime } = prepare else { panic!("{prepare:?}") };
        assert_eq!(change.flow.flow().unwrap().client().port(), 4000);
        assert_eq!((change.generation, lifetime.lifetime), (None, 300));
        assert_eq!(named.site().unwrap().mac(), Mac([2, 0, 0, 0, 0, 6]));
        let prepare = parse(&format!("prepare {FLOW} --generation 0")).unwrap();
        assert!(matches!(prepare, RequestArgs::Prepare { target, .. } if target.site().is_none()));
        assert!(matches!(parse(&format!("prepared {FLOW} --refuse")), Ok(RequestArgs::Prepared { .. })));
        assert!(matches!(parse(&format!("hold {FLOW} {target}")), Ok(RequestArgs::Hold { .. })));
    }

    #[test]
    fn incomplete_requests_are_refused() {
        for wrong in [
            "get --client 10.0.0.7:4000".to_owned(),
            "get --client 0.0.0.0:4000 --service 10.0.0.5:80".to_owned(),
            format!("prepare {FLOW} --target 10.0.0.6:80"),
            format!("prepare {FLOW} --lifetime 61s"),
            format!("prepare {FLOW} --lifetime 0s"),
            format!("prepared {FLOW}"),
            format!("prepared {FLOW} --refuse --target 10.0.0.6:80 --mac 02:00:00:00:00:06"),
            format!("hold {FLOW}"),
            "heartbeat".to_owned(),
        ] {
            assert!(parse(&wrong).is_err(), "{wrong}");
        }
        let families = parse("get --client 10.0.0.7:4000 --service [2001:db8::1]:80").unwrap();
        assert!(matches!(families, RequestArgs::Get { flow } if flow.flow().is_err()));
    }
}
