//! A sidecar's settings, and the errors that prevent its start.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use spillway_batch::{AddressRange, Encryption};
use spillway_client::Key;
use spillway_daemon::{AdminGroup, PortError};
use spillway_discovery::{EtcdAccess, Source};
use spillway_policy::{HELPERS_ASKED_DEFAULT, HELPERS_ASKED_MAX, Override};
use spillway_requests::Protocol;

/// An address on which the sidecar accepts local clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A UNIX socket.
    Unix {
        /// The socket's file.
        path: PathBuf,
        /// The file's permissions, such as 0o660.
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
    /// Where the list of helpers comes from; `None`: sessions use the server's link port only.
    pub helpers: Option<Source>,
    /// Certificates and credentials for etcd, if `helpers` names etcd.
    pub etcd: EtcdAccess,
    /// The key that the server accepts from clients.
    pub key: Key,
    /// Whether links are encrypted.
    pub encryption: Encryption,
    /// Addresses on which the sidecar accepts local clients.
    pub listen: Vec<Listen>,
    /// Addresses from which clients may connect by TCP.
    pub allow_clients: Vec<AddressRange>,
    /// Addresses of load balancers: their connections must begin with a PROXY header, which is trusted.
    pub proxy_protocol_from: Vec<AddressRange>,
    /// The clients' protocol, for measuring latency.
    pub protocol: Protocol,
    /// The service's name in `spillway relief NAME …`.
    pub name: String,
    /// The operator's override at the start. `off`: helpers are used only while the server's link port cannot be
    /// reached.
    pub manual_override: Override,
    /// Number of helpers whose load is queried before one is chosen.
    pub helpers_asked: usize,
    /// The SLA: the latency that 99 of 100 replies should stay below.
    pub sla: Duration,
    /// Number of network threads.
    pub threads: usize,
    /// How long a local connection may wait for its session's first carrier.
    pub connect_timeout: Duration,
    /// Maximum number of local connections at the same time; further connections are rejected.
    pub max_connections: u32,
    /// Bytes of memory for buffered data of all connections. When memory is scarce, clients that do not read are
    /// paused; at the limit they are closed, largest first.
    pub max_memory: u64,
    /// How long connections may take to become idle after SIGTERM.
    pub drain_deadline: Duration,
    /// The admin socket, which answers `spillway status`.
    pub socket: Option<PathBuf>,
    /// The group whose members may set an override by the admin socket; other users may only read the status. `None`:
    /// the permissions of the socket's file decide.
    pub admin_group: Option<AdminGroup>,
    /// The address on which metrics are served to Prometheus.
    pub metrics: Option<SocketAddr>,
}

impl Settings {
    /// The default settings.
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
            manual_override: Override::default(),
            helpers_asked: HELPERS_ASKED_DEFAULT,
            sla: Duration::from_millis(1),
            threads: 1,
            connect_timeout: Duration::from_secs(5),
            max_connections: 10_000,
            max_memory: 256 << 20,
            drain_deadline: Duration::from_secs(30),
            socket: None,
            admin_group: None,
            metrics: None,
        }
    }

    /// Checks what can be checked before the start. [`Sidecar::start`](crate::Sidecar::start) calls this first.
    ///
    /// # Errors
    /// A value is out of its bounds, `listen` is empty, or an address accepts other hosts while `allow_clients` allows only
    /// this host.
    pub fn check(&self) -> Result<(), StartError> {
        if self.listen.is_empty() {
            return Err(StartError::NoListener);
        }
        if self.threads == 0 || self.threads > THREADS_MAX {
            return Err(StartError::Threads(self.threads));
        }
        if !(SLA_MIN..=SLA_MAX).contains(&self.sla) {
            return Err(StartError::Sla(self.sla));
        }
        if self.helpers_asked == 0 || self.helpers_asked > HELPERS_ASKED_MAX {
            return Err(StartError::HelpersAsked(self.helpers_asked));
        }
        // An address for other hosts is useless with the default of `allow_clients`, which allows this host only.
        let beyond_loopback = self.listen.iter().find_map(|listen| match listen {
            Listen::Tcp(address) if !address.ip().is_loopback() => Some(*address),
            _ => None,
        });
        match beyond_loopback.filter(|_| self.allow_clients == loopback()) {
            Some(address) => Err(StartError::OnlyLoopbackAllowed(address)),
            None => Ok(()),
        }
    }
}

/// Bounds of `sla`.
const SLA_MIN: Duration = Duration::from_micros(10);
const SLA_MAX: Duration = Duration::from_secs(10);
/// Maximum of `threads`.
const THREADS_MAX: usize = 256;

/// The loopback ranges of both address families.
pub fn loopback() -> Vec<AddressRange> {
    ["127.0.0.0/8", "::1/128"].iter().filter_map(|range| range.parse().ok()).collect()
}

pub(crate) fn is_in(ranges: &[AddressRange], address: IpAddr) -> bool {
    ranges.iter().any(|range| range.contains(address))
}

/// Why a sidecar does not start. The text names the operator's next step.
#[derive(Debug)]
pub enum StartError {
    /// `listen` is empty.
    NoListener,
    /// `threads`, with this value, is 0 or above its limit.
    Threads(usize),
    /// `sla`, with this value, is out of its bounds.
    Sla(Duration),
    /// `helpers_asked`, with this value, is 0 or above its limit.
    HelpersAsked(usize),
    /// The address accepts other hosts, but `allow_clients` allows only this host.
    OnlyLoopbackAllowed(SocketAddr),
    /// The sidecar cannot listen on an address.
    Listen {
        /// The address.
        listen: Listen,
        /// The system's error.
        error: io::Error,
    },
    /// The admin socket cannot be created, or the sidecar cannot listen on the metrics port.
    Port(PortError),
    /// A descriptor or a thread cannot be created.
    Host(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NoListener => {
                f.write_str("no address to listen on: give --listen ADDRESS, to which local clients connect")
            }
            StartError::Threads(threads) => {
                write!(f, "--threads {threads} is out of its bounds: give 1 to {THREADS_MAX}")
            }
            StartError::Sla(sla) => {
                write!(f, "--sla {sla:?} is out of its bounds: give {SLA_MIN:?} to {SLA_MAX:?}")
            }
            StartError::HelpersAsked(helpers) => {
                write!(f, "--ask {helpers} is out of its bounds: give 1 to {HELPERS_ASKED_MAX}")
            }
            StartError::OnlyLoopbackAllowed(address) => write!(
                f,
                "--listen {address} accepts other hosts, but only clients of this host are allowed: give \
                 --allow-clients CIDR. Caution: the sidecar does not authenticate clients, and connects them to the \
                 server with its own key"
            ),
            StartError::Listen { listen: listen @ Listen::Tcp(_), error }
                if error.kind() == io::ErrorKind::AddrInUse =>
            {
                write!(
                    f,
                    "cannot listen on {listen}: another program listens there (ss -ltnp shows which): give another \
                     port with --listen"
                )
            }
            StartError::Listen { listen: listen @ Listen::Unix { .. }, error }
                if error.kind() == io::ErrorKind::AddrInUse =>
            {
                write!(
                    f,
                    "cannot listen on {listen}: a program answers there, or the file is not a socket: stop the \
                     program, or give another path with --listen"
                )
            }
            StartError::Listen { listen, error } => {
                write!(f, "cannot listen on {listen}: {error}: correct --listen")
            }
            StartError::Port(PortError::Socket { path, error }) => {
                write!(
                    f,
                    "cannot create the admin socket {}: {error}: correct --status-socket",
                    path.display()
                )
            }
            StartError::Port(PortError::Metrics { address, error }) => {
                write!(f, "cannot listen on {address} for metrics: {error}: correct --metrics")
            }
            StartError::Host(error) => write!(
                f,
                "cannot create a descriptor or thread: {error}: check the limits of open files and processes (ulimit -n, \
                 ulimit -u)"
            ),
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
    fn invalid_settings_are_errors_that_name_the_option() {
        assert!(settings(&["127.0.0.1:1", "[::1]:1"]).check().is_ok());
        assert!(settings(&[]).check().unwrap_err().to_string().contains("--listen"));
        let mut open = settings(&["0.0.0.0:1"]);
        assert!(open.check().unwrap_err().to_string().contains("--allow-clients"));
        open.allow_clients = vec!["10.0.0.0/8".parse().unwrap()];
        assert!(open.check().is_ok());
        let check = |change: fn(&mut Settings)| {
            let mut settings = settings(&["127.0.0.1:1"]);
            change(&mut settings);
            settings.check().map_err(|error| error.to_string())
        };
        type Case = (fn(&mut Settings), &'static str);
        let invalid: [Case; 6] = [
            (|settings| settings.threads = 0, "--threads 0"),
            (|settings| settings.threads = THREADS_MAX + 1, "--threads 257"),
            (|settings| settings.sla = SLA_MIN - Duration::from_nanos(1), "--sla 9.999µs"),
            (|settings| settings.sla = SLA_MAX + Duration::from_nanos(1), "--sla 10.000000001s"),
            (|settings| settings.helpers_asked = 0, "--ask 0"),
            (|settings| settings.helpers_asked = HELPERS_ASKED_MAX + 1, "--ask 9"),
        ];
        for (change, option) in invalid {
            assert!(check(change).unwrap_err().contains(option), "{option}");
        }
        assert_eq!(check(|settings| settings.helpers_asked = HELPERS_ASKED_MAX), Ok(()));
    }

    #[test]
    fn loopback_contains_both_families_and_mapped_addresses() {
        for (address, is_loopback) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.1", false),
        ] {
            assert_eq!(is_in(&loopback(), address.parse().unwrap()), is_loopback, "{address}");
        }
    }
}
