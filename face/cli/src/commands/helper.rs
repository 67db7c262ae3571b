//! `spillway helper`: gathers many clients' small messages into large ones for a hot server.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use spillway_auth::Key;
use spillway_batch::{AddressRange, PolicyKind};
use spillway_helper::config::{HelperConfig, default_max_delay, listen_address, parse_duration, read_file};
use spillway_helper::control::Source;

use super::services::Services;

/// Batches of more bytes gain nothing: the server's cost per batch is already spread over hundreds of messages.
const BATCH_BYTES_MAX: usize = 64 << 10;

/// Stand between clients and a hot server: gather many clients' small messages into large ones for it, and take its
/// replies apart again.
///
/// The server runs under `spillway run --link ADDR` and has the same key. Links to it are opened at once and kept;
/// while none is up, clients are refused, so that health checks and load balancers see it.
///
/// Settings come from a file, or from the flags for a first try; docs/configuration.md has every key of the file.
///
/// SIGTERM: takes no more clients and lets those that are there finish; a second one ends at once. SIGHUP: reads
/// the settings again, key files and host names included (`spillway reload` also tells the outcome). SIGUSR1: a
/// status line on stderr.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  spillway helper --config /etc/spillway/helper.toml
  spillway helper --service cache=10.0.0.5:11411 --listen :11211 --key /etc/spillway/cache.key

ADDR is HOST:PORT, :PORT for every address of this host, or PORT for loopback only.")]
pub(crate) struct Args {
    /// Read all settings from this file. `spillway check FILE` says what is wrong with it.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "service", "listen", "link-listen", "key", "client_key", "allow_clients", "threads", "max_delay", "sla", "batch",
        "max_connections", "drain_deadline", "require_encryption", "status_socket", "metrics", "proxy_protocol_from",
    ])]
    config: Option<PathBuf>,

    #[command(flatten)]
    services: Services,

    /// This helper's key for the servers (see `spillway key new`); give it again for older keys that servers may
    /// still want. Not needed for servers on loopback.
    #[arg(long, value_name = "FILE")]
    key: Vec<PathBuf>,

    /// A key that library clients may use on --link-listen; give it again for more. Not needed on loopback.
    #[arg(long, value_name = "FILE")]
    client_key: Vec<PathBuf>,

    /// Refuse links that would not be encrypted, to servers and of library clients: of peers that are too old for it, or
    /// without a key.
    #[arg(long)]
    require_encryption: bool,

    /// Who may connect, as CIDR; give it again for more [default: private ranges, and loopback where the server is
    /// on loopback].
    #[arg(long, value_name = "CIDR")]
    allow_clients: Vec<AddressRange>,

    /// Load balancers, as CIDR, that must say who their clients are by the PROXY protocol, version 1 or 2, and are
    /// believed; give it again for more. What they announce is subject to --allow-clients.
    #[arg(long, value_name = "CIDR")]
    proxy_protocol_from: Vec<AddressRange>,

    /// Network threads; 0: one for each core that this process may use.
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,

    /// Upper bound on the latency that waiting for a fuller batch adds, such as 200us or 1ms; 0 sends what each
    /// turn brings [default: a quarter of --sla, otherwise 200us].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    max_delay: Option<Duration>,

    /// The latency that 99 of 100 requests are to stay below, such as 1ms.
    #[arg(long, value_name = "TIME", value_parser = parse_sla)]
    sla: Option<Duration>,

    /// When a batch goes.
    #[arg(long, value_enum, default_value_t = Batch::Adaptive)]
    batch: Batch,

    /// Clients at one time; more are refused.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,

    /// How long clients may take to finish after SIGTERM.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    drain_deadline: Duration,

    /// Answer `spillway status`, `reload` and `drain` on this UNIX socket, for owner and group.
    #[arg(long, value_name = "PATH", visible_alias = "socket")]
    status_socket: Option<PathBuf>,

    /// Answer Prometheus (/metrics), programs (/status), health checks (/health) and browsers (/) on this address:
    /// HOST:PORT, :PORT for every IPv4 address of this host, or PORT for loopback only. It asks for no password.
    #[arg(long, value_name = "ADDR")]
    metrics: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Batch {
    /// Size and interval follow the load (PostMan, Algorithm 1), the interval at most --max-delay.
    Adaptive,
    /// PostMan's Algorithm 1 as published, without an upper bound: for comparison.
    Algorithm1,
    /// Always wait for --max-delay or 64 KiB.
    Fixed,
    /// Wait from a batch's first request on, nearly --max-delay at most, where others can be expected meanwhile.
    Deadline,
    /// As deadline, and while the server has two batches to answer the next one is held until a reply comes.
    Following,
}

impl Args {
    fn policy(&self) -> PolicyKind {
        let delay = self.max_delay.unwrap_or_else(|| default_max_delay(self.sla));
        let bytes = BATCH_BYTES_MAX;
        match self.batch {
            Batch::Adaptive => PolicyKind::Adaptive { max_delay: delay, max_bytes: bytes },
            Batch::Algorithm1 => PolicyKind::Algorithm1,
            Batch::Fixed => PolicyKind::Fixed { delay, bytes },
            Batch::Deadline => PolicyKind::Deadline { max_delay: delay, max_bytes: bytes },
            Batch::Following => PolicyKind::Following { max_delay: delay, max_bytes: bytes },
        }
    }

    /// What the flags say, with what they name as it is now.
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
            threads: self.threads,
            max_connections: self.max_connections,
            socket: self.status_socket.clone(),
            metrics,
            drain_deadline: self.drain_deadline,
            ..HelperConfig::new(services)
        })
    }

    /// Where settings come from, now and at each reload.
    fn source(self) -> Source {
        match self.config.clone() {
            Some(path) => Box::new(move || read_file(&path, true).map_err(|problems| problems.to_string())),
            None => Box::new(move || self.config().map_err(|error| error.to_string())),
        }
    }
}

fn parse_sla(text: &str) -> Result<Duration, String> {
    let sla = parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_micros(10)..=Duration::from_secs(4);
    if allowed.contains(&sla) { Ok(sla) } else { Err("give a time from 10us to 4s".into()) }
}

fn read_keys(paths: &[PathBuf]) -> Result<Vec<Key>, spillway_keys::KeyFileError> {
    paths.iter().map(|path: &PathBuf| spillway_keys::read_key_file(Path::new(path))).collect()
}

pub(crate) fn run(args: Args) -> ExitCode {
    let mut source = args.source();
    let ended = source().and_then(|config| spillway_helper::run(config, source).map_err(|e| e.to_string()));
    ended.unwrap_or_else(|error| {
        spillway_daemon::say(&format!("spillway: {error}"));
        ExitCode::FAILURE
    })
}
