//! `spillway helper`: batches many clients' small messages for a hot server.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use spillway_auth::Key;
use spillway_batch::{AddressRange, PolicyKind};
use spillway_daemon::AdminGroup;
use spillway_helper::config::{
    DEFER_INTERRUPTS_MAX, Engine, HelperConfig, XdpConfig, default_max_delay, read_file,
};
use spillway_helper::control::SettingsSource;
use spillway_values::{listen_address, parse_duration};

use super::services::Services;

/// Larger batches gain nothing: hundreds of messages already share the server's cost per batch.
const BATCH_BYTES_MAX: usize = 64 << 10;

/// For `read_file`: key files and interfaces are read too, not only the configuration file.
const READS_HOST: bool = true;

/// Run a helper: batch many clients' messages for a server
///
/// The server runs under `spillway run --link ADDR` with the same key. The helper opens links to it at once and keeps
/// them. While no link is up, clients are refused, so that health checks and load balancers notice.
///
/// Settings come from a file, or from flags for a first try; docs/configuration.md has all keys of the file.
///
/// SIGTERM drains: no new clients, and --drain-deadline for the present ones; another SIGTERM, at least
/// 1 s after the first, ends the process at once. SIGHUP reloads, as `spillway reload` does. SIGUSR1 logs a status
/// line.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  spillway helper --config /etc/spillway/helper.toml
  spillway helper --service cache=10.0.0.5:11411 --listen :11211 --key /etc/spillway/cache.key

ADDR is HOST:PORT, :PORT for every address of this host, or PORT for loopback only.")]
pub(crate) struct Args {
    /// Read all settings from this file; `spillway check FILE` finds mistakes in it
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "service", "listen", "link-listen", "key", "client_key", "allow_clients", "threads", "max_delay", "sla", "batch",
        "max_connections", "drain_deadline", "require_encryption", "status_socket", "admin_group", "metrics",
        "proxy_protocol_from", "engine", "interface", "defer_interrupts",
    ])]
    config: Option<PathBuf>,

    #[command(flatten)]
    services: Services,

    /// This helper's key for the servers (`spillway key new`); repeat for older keys that servers may still need. Not
    /// needed for servers on loopback
    #[arg(long, value_name = "FILE")]
    key: Vec<PathBuf>,

    /// A key that library clients may use at --link-listen; repeat for more. Not needed on loopback
    #[arg(long, value_name = "FILE")]
    client_key: Vec<PathBuf>,

    /// Refuse links that would not be encrypted (older peers, or no key), to servers and from library clients
    #[arg(long)]
    require_encryption: bool,

    /// Addresses that may connect, as CIDR; repeat for more [default: private ranges, and loopback if the server is on
    /// loopback]
    #[arg(long, value_name = "CIDR")]
    allow_clients: Vec<AddressRange>,

    /// Load balancers, as CIDR, that must send the PROXY protocol (version 1 or 2); repeat for more. The client
    /// addresses that they send are subject to --allow-clients
    #[arg(long, value_name = "CIDR")]
    proxy_protocol_from: Vec<AddressRange>,

    /// What carries all connections
    #[arg(long, value_enum, default_value_t = EngineName::Sockets)]
    engine: EngineName,

    /// Network interface of the engine xdp: that of the --listen addresses, which also leads to the servers
    #[arg(long, value_name = "IF", required_if_eq("engine", "xdp"))]
    interface: Option<String>,

    /// With --engine xdp: under load, the kernel polls the interface at this interval instead of by interrupts, at most
    /// 1ms. Saves much CPU, and adds up to this time to each request and each reply; 200us is a good choice for an
    /// interface that only the helper uses; 0: interrupts only
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_deferral, requires = "interface")]
    defer_interrupts: Duration,

    /// Network threads; 0: one for each core this process may use
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,

    /// Largest delay that batching adds, such as 200us or 1ms; 0: batches leave at the end of each turn of the
    /// event loop [default: a quarter of --sla, otherwise 200us]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    max_delay: Option<Duration>,

    /// The latency that 99 of 100 requests should stay below, such as 1ms
    #[arg(long, value_name = "TIME", value_parser = parse_sla)]
    sla: Option<Duration>,

    /// When a batch leaves
    #[arg(long, value_enum, default_value_t = Batch::Adaptive)]
    batch: Batch,

    /// Largest number of clients; more are refused
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,

    /// Time that clients have to finish after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    drain_deadline: Duration,

    /// Admin socket for `spillway status`, `reload`, `drain` and `relief`; its owner and group may use it
    /// [default: helper.sock in /run/spillway or $XDG_RUNTIME_DIR/spillway, if one of them can be used]
    #[arg(long, value_name = "PATH", visible_alias = "socket")]
    status_socket: Option<PathBuf>,

    /// Group, by name or number, whose members may reload, drain and override over the admin socket; every other user
    /// may read [default: owner and group of the socket may do all]
    #[arg(long, value_name = "GROUP")]
    admin_group: Option<AdminGroup>,

    /// Serve Prometheus (/metrics), programs (/status), health checks (/health) and browsers (/) on this address:
    /// HOST:PORT, :PORT for all IPv4 addresses, or PORT for loopback. Without a password
    #[arg(long, value_name = "ADDR")]
    metrics: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EngineName {
    /// Kernel sockets
    Sockets,
    /// Spillway's TCP stack on AF_XDP, beside the kernel: less CPU for each message. `spillway doctor --engine xdp` shows
    /// what it needs
    Xdp,
    /// xdp if nothing is missing for it, otherwise sockets; the log gives the choice and the reason
    Auto,
}

impl From<EngineName> for Engine {
    fn from(name: EngineName) -> Engine {
        match name {
            EngineName::Sockets => Engine::Sockets,
            EngineName::Xdp => Engine::Xdp,
            EngineName::Auto => Engine::Auto,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Batch {
    /// Size and interval follow the load (PostMan, Algorithm 1), with --max-delay as the longest interval
    Adaptive,
    /// PostMan's Algorithm 1 as published, without an upper bound: for comparison
    Algorithm1,
    /// A batch leaves --max-delay after the previous one, or sooner with 64 KiB
    Fixed,
    /// Wait from a batch's first request, for at most --max-delay, if others are expected meanwhile
    Deadline,
    /// As deadline; while two batches are unanswered, hold the next one until a reply arrives
    Following,
}

impl Args {
    fn policy(&self) -> PolicyKind {
        let delay = self.max_delay.unwrap_or_else(|| default_max_delay(self.sla));
        let bytes = BATCH_BYTES_MAX;
        match self.batch {
            Batch::Adaptive => PolicyKind::Adaptive { max_delay: delay, max_bytes: bytes },
            Batch::Algorithm1 => PolicyKind::Algorithm1,
            Batch::Fixed => PolicyKind::Fixed { interval: delay, size_bytes: bytes },
            Batch::Deadline => PolicyKind::Deadline { max_delay: delay, max_bytes: bytes },
            Batch::Following => PolicyKind::Following { max_delay: delay, max_bytes: bytes },
        }
    }

    /// The configuration from the flags; reads key files and resolves host names.
    fn config(&self) -> Result<HelperConfig, Box<dyn std::error::Error>> {
        let keys = read_keys(&self.key)?;
        let client_keys = read_keys(&self.client_key)?;
        let metrics = self.metrics.as_deref().map(listen_address).transpose()?;
        let mut services = self.services.resolve()?;
        for service in &mut services {
            service.keys.clone_from(&keys);
            service.client_keys.clone_from(&client_keys);
            service.require_encryption = self.require_encryption;
            service.clients.clone_from(&self.allow_clients);
            service.proxy_protocol_from.clone_from(&self.proxy_protocol_from);
            service.sla = self.sla;
            service.policy = self.policy();
        }
        Ok(HelperConfig {
            engine: self.engine.into(),
            interface: self.interface.clone(),
            xdp: XdpConfig { defer_interrupts: self.defer_interrupts, ..XdpConfig::default() },
            threads: self.threads,
            max_connections: self.max_connections,
            socket: self.status_socket.clone(),
            admin_group: self.admin_group.clone(),
            metrics,
            drain_deadline: self.drain_deadline,
            ..HelperConfig::new(services)
        })
    }

    /// Returns the function that reads the settings at the start and at each reload.
    fn source(mut self) -> SettingsSource {
        if self.config.is_none() && self.status_socket.is_none() {
            // Chosen once, not at each reload: by then this helper itself uses the socket.
            self.status_socket = spillway_daemon::free_default_socket("helper");
        }
        match self.config.clone() {
            Some(path) => {
                Box::new(move || read_file(&path, READS_HOST).map_err(|problems| problems.to_string()))
            }
            None => Box::new(move || self.config().map_err(|error| error.to_string())),
        }
    }
}

fn parse_sla(text: &str) -> Result<Duration, String> {
    let sla = parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_micros(10)..=Duration::from_secs(4);
    if allowed.contains(&sla) { Ok(sla) } else { Err("give a time from 10us to 4s".into()) }
}

fn parse_deferral(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text).map_err(|error| error.to_string())?;
    if interval <= DEFER_INTERRUPTS_MAX { Ok(interval) } else { Err("give a time from 0s to 1ms".into()) }
}

fn read_keys(paths: &[PathBuf]) -> Result<Vec<Key>, spillway_keys::KeyFileError> {
    paths.iter().map(|path: &PathBuf| spillway_keys::read_key_file(Path::new(path))).collect()
}

pub(crate) fn run(args: Args) -> ExitCode {
    let mut source = args.source();
    let outcome = source().and_then(|config| spillway_helper::run(config, source).map_err(|e| e.to_string()));
    outcome.unwrap_or_else(|error| {
        spillway_daemon::log_line(&format!("spillway: {error}"));
        ExitCode::FAILURE
    })
}
