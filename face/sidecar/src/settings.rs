//! What a sidecar is told, and what can be wrong with it.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use spillway_batch::{AddressRange, Encryption};
use spillway_client::Key;
use spillway_daemon::PortError;
use spillway_discovery::{EtcdAccess, Source};
use spillway_policy::{ASKED_DEFAULT, Override};
use spillway_requests::Protocol;

/// Where local clients come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A UNIX socket, and its file's permissions.
    Unix {
        /// The file.
        path: PathBuf,
        /// Such as 0o660.
        mode: u32,
    },
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix { path, .. } => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A sidecar's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The server's own link port.
    pub server: SocketAddr,
    /// Where helpers are found; `None`: there are none.
    pub helpers: Option<Source>,
    /// Which etcd is trusted, and as whom it is asked, where helpers are found there.
    pub etcd: EtcdAccess,
    /// What the server accepts of clients.
    pub key: Key,
    /// Whether links are encrypted.
    pub encryption: Encryption,
    /// Where local clients come in.
    pub listen: Vec<Listen>,
    /// Who may come by TCP.
    pub allow_clients: Vec<AddressRange>,
    /// Who must begin with a PROXY header, and is believed.
    pub proxy_protocol_from: Vec<AddressRange>,
    /// What clients speak: only latency is measured by it.
    pub protocol: Protocol,
    /// What the operator calls the service: `spillway relief NAME …`.
    pub name: String,
    /// The operator's override at the start: whether latency decides, or helpers are used always, or never as long as the
    /// server is to be had.
    pub word: Override,
    /// So many helpers are asked for their load before one is chosen.
    pub asked: usize,
    /// The p99 of replies that is wanted.
    pub sla: Duration,
    /// Network threads.
    pub threads: usize,
    /// How long a local connection waits until a server has answered.
    pub connect_timeout: Duration,
    /// Local connections at one time; more are refused.
    pub max_connections: u32,
    /// Bytes of memory for what waits, of all connections: when it is short, clients that do not read are paused, and
    /// those of them that hold most are closed.
    pub max_memory: u64,
    /// How long connections may take to become idle after SIGTERM.
    pub drain_deadline: Duration,
    /// Answer `spillway status` here.
    pub socket: Option<PathBuf>,
    /// Answer Prometheus here.
    pub metrics: Option<SocketAddr>,
}

impl Settings {
    /// With the defaults.
    pub fn new(server: SocketAddr, key: Key) -> Settings {
        Settings {
            server,
            helpers: None,
            etcd: EtcdAccess::default(),
            key,
            encryption: Encryption::Preferred,
            listen: Vec::new(),
            allow_clients: loopback(),
            proxy_protocol_from: Vec::new(),
            protocol: Protocol::default(),
            name: "service".into(),
            word: Override::default(),
            asked: ASKED_DEFAULT,
            sla: Duration::from_millis(1),
            threads: 1,
            connect_timeout: Duration::from_secs(5),
            max_connections: 10_000,
            max_memory: 256 << 20,
            drain_deadline: Duration::from_secs(30),
            socket: None,
            metrics: None,
        }
    }

    /// Checks what can be checked without starting: [`Sidecar::start`](crate::Sidecar::start) does so first.
    ///
    /// # Errors
    /// A value is out of its bounds, or there is no client that could connect.
    pub fn check(&self) -> Result<(), StartError> {
        if self.listen.is_empty() {
            return Err(StartError::NoListener);
        }
        if self.threads == 0 || self.threads > THREADS_MAX {
            return Err(StartError::Threads);
        }
        if !(SLA_MIN..=SLA_MAX).contains(&self.sla) {
            return Err(StartError::Sla);
        }
        // Whoever listens to others wants them; the default would refuse them one by one.
        let unreachable = self.listen.iter().find_map(|listen| match listen {
            Listen::Tcp(address) if !address.ip().is_loopback() => Some(*address),
            _ => None,
        });
        match unreachable.filter(|_| self.allow_clients == loopback()) {
            Some(address) => Err(StartError::NobodyMayCome(address)),
            None => Ok(()),
        }
    }
}

/// As the policy has it.
const SLA_MIN: Duration = Duration::from_micros(10);
const SLA_MAX: Duration = Duration::from_secs(10);
/// More serve no purpose.
const THREADS_MAX: usize = 256;

/// This host only.
pub fn loopback() -> Vec<AddressRange> {
    ["127.0.0.0/8", "::1/128"].iter().filter_map(|range| range.parse().ok()).collect()
}

/// Whether an address lies in one of these.
pub(crate) fn is_in(ranges: &[AddressRange], address: IpAddr) -> bool {
    ranges.iter().any(|range| range.contains(address))
}

/// Why a sidecar does not start. Its text tells the operator the next step.
#[derive(Debug)]
pub enum StartError {
    /// Nowhere to listen.
    NoListener,
    /// No sensible number.
    Threads,
    /// Out of its bounds.
    Sla,
    /// It listens where nobody is allowed to come from.
    NobodyMayCome(SocketAddr),
    /// An address cannot be listened on.
    Listen {
        /// Which.
        listen: Listen,
        /// Why.
        error: io::Error,
    },
    /// The admin socket cannot be made, or the metrics port cannot be listened on.
    Port(PortError),
    /// The host has no descriptors or threads left.
    Host(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NoListener => f.write_str("give --listen: where local clients connect"),
            StartError::Threads => write!(f, "--threads: from 1 to {THREADS_MAX}"),
            StartError::Sla => write!(f, "--sla: from {SLA_MIN:?} to {SLA_MAX:?}"),
            StartError::NobodyMayCome(address) => write!(
                f,
                "--listen {address} takes clients of other hosts, which must be named: --allow-clients CIDR (the \
                 sidecar asks for no password and speaks to the server with your key)"
            ),
            StartError::Listen { listen, error } if error.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "cannot listen on {listen}: another program does, or there is a file")
            }
            StartError::Listen { listen, error } => write!(f, "cannot listen on {listen}: {error}"),
            StartError::Port(PortError::Socket { path, error }) => {
                write!(f, "cannot make the admin socket {}: {error}", path.display())
            }
            StartError::Port(PortError::Metrics { address, error }) => {
                write!(f, "cannot listen on {address} for metrics: {error}")
            }
            StartError::Host(error) => write!(f, "the host has no descriptors or threads left: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(listen: &[&str]) -> Settings {
        let mut settings = Settings::new(([10, 0, 0, 1], 1).into(), Key::from_secret([1; 32]));
        settings.listen = listen.iter().map(|address| Listen::Tcp(address.parse().unwrap())).collect();
        settings
    }

    #[test]
    fn what_cannot_work_is_said() {
        assert!(settings(&["127.0.0.1:1", "[::1]:1"]).check().is_ok());
        assert!(settings(&[]).check().unwrap_err().to_string().contains("--listen"));
        let mut open = settings(&["0.0.0.0:1"]);
        assert!(open.check().unwrap_err().to_string().contains("--allow-clients"));
        open.allow_clients = vec!["10.0.0.0/8".parse().unwrap()];
        assert!(open.check().is_ok());
        open.threads = 0;
        assert!(open.check().is_err());
    }

    #[test]
    fn this_host_is_both_families_mapped_addresses_included() {
        for (address, inside) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.1", false),
        ] {
            assert_eq!(is_in(&loopback(), address.parse().unwrap()), inside, "{address}");
        }
    }
}
