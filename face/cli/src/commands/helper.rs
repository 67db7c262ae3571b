//! `spillway helper`: gathers many clients' small messages into large ones for a hot server.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use spillway_auth::KeyRing;
use spillway_batch::{AddressRange, PolicyKind, Role};
use spillway_helper::HelperConfig;

use super::services::{Services, listen_address};

/// Batches of more bytes gain nothing: the server's cost per batch is already spread over hundreds of messages.
const BATCH_BYTES_MAX: usize = 64 << 10;

/// Stand between clients and a hot server: gather many clients' small messages into large ones for it, and take its
/// replies apart again.
///
/// The server runs under `spillway run --link ADDR` and has the same key. Links to it are opened at once and kept;
/// while none is up, clients are refused, so that health checks and load balancers see it.
///
/// SIGTERM: takes no more clients and lets those that are there finish; a second one ends at once. SIGUSR1: a status
/// line on stderr.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  spillway helper --service cache=10.0.0.5:11411 --listen :11211 --key /etc/spillway/cache.key

ADDR is HOST:PORT, :PORT for every address of this host, or PORT for loopback only.")]
pub(crate) struct Args {
    #[command(flatten)]
    services: Services,

    /// This helper's key for the servers (see `spillway key new`). Not needed for servers on loopback.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,

    /// A key that library clients may use on --link-listen; give it again for more. Not needed on loopback.
    #[arg(long, value_name = "FILE")]
    client_key: Vec<PathBuf>,

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
    /// turn brings.
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = parse_time)]
    max_delay: Duration,

    /// When a batch goes.
    #[arg(long, value_enum, default_value_t = Batch::Adaptive)]
    batch: Batch,

    /// Clients at one time; more are refused.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,

    /// How long clients may take to finish after SIGTERM.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    drain_deadline: Duration,

    /// Answer `spillway status` on this UNIX socket, for owner and group.
    #[arg(long, value_name = "PATH")]
    status_socket: Option<PathBuf>,

    /// Answer Prometheus (/metrics), programs (/status), health checks (/health) and browsers (/) on this address:
    /// HOST:PORT, :PORT for every address of this host, or PORT for loopback only. It asks for no password.
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
}

impl Args {
    fn policy(&self) -> PolicyKind {
        let (delay, bytes) = (self.max_delay, BATCH_BYTES_MAX);
        match self.batch {
            Batch::Adaptive => PolicyKind::Adaptive { max_delay: delay, max_bytes: bytes },
            Batch::Algorithm1 => PolicyKind::Algorithm1,
            Batch::Fixed => PolicyKind::Fixed { delay, bytes },
        }
    }

    fn config(self) -> Result<HelperConfig, Box<dyn std::error::Error>> {
        let policy = self.policy();
        let key = self.key.as_ref().map(spillway_keys::read_key_file).transpose()?;
        let mut client_keys = KeyRing::new();
        for path in &self.client_key {
            client_keys.accept(Role::Client, spillway_keys::read_key_file(path)?);
        }
        let metrics = self.metrics.as_deref().map(listen_address).transpose()?;
        let mut services = self.services.resolve()?;
        for service in &mut services {
            service.key = key.clone();
            service.client_keys = (!client_keys.is_empty()).then(|| client_keys.clone());
            service.clients.clone_from(&self.allow_clients);
            service.proxy_from.clone_from(&self.proxy_protocol_from);
        }
        Ok(HelperConfig {
            threads: self.threads,
            policy,
            max_connections: self.max_connections,
            status_socket: self.status_socket,
            metrics,
            drain_deadline: self.drain_deadline,
            ..HelperConfig::new(services)
        })
    }
}

pub(crate) fn run(args: Args) -> ExitCode {
    super::logging::to_stderr();
    let ended = args.config().and_then(|config| Ok(spillway_helper::run(config)?));
    ended.unwrap_or_else(|error| {
        eprintln!("spillway: {error}");
        ExitCode::FAILURE
    })
}

/// A time that is not one.
#[derive(Debug)]
struct NotATime;

impl fmt::Display for NotATime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time has a unit: 200us, 1ms, 30s, 5m")
    }
}

impl std::error::Error for NotATime {}

fn parse_time(text: &str) -> Result<Duration, NotATime> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or(NotATime)?;
    let (number, unit) = text.split_at(digits);
    let nanos: u64 = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        _ => return Err(NotATime),
    };
    let number: u64 = number.parse().map_err(|_| NotATime)?;
    number.checked_mul(nanos).map(Duration::from_nanos).ok_or(NotATime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("200us").unwrap(), Duration::from_micros(200));
        assert_eq!(parse_time("0").unwrap(), Duration::ZERO);
        assert_eq!(parse_time("5m").unwrap(), Duration::from_secs(300));
        for wrong in ["", "200", "us", "1.5s", "-1s", "99999999999999s", "1h"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
