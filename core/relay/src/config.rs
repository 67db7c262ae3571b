//! Configuration of a relay, at its start and at each reload.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;

use spillway_auth::{Key, KeyRing};
use spillway_batch::unauthenticated::Bounds;
use spillway_batch::{AddressRange, Encryption, Limits, PolicyKind};
use spillway_policy::SheddingSettings;

use crate::measurement::Measurement;

/// Fills a buffer with random bytes for nonces, ephemeral secrets and jitter. Must be a cryptographic random generator
/// in production; the simulator uses a seeded one.
pub type Random = Box<dyn FnMut(&mut [u8]) + Send>;

/// Limit on services over the life of a relay, removed ones included: a removed service keeps its index, so that
/// counters and notices keep their meaning.
pub(crate) const SERVICES_MAX: usize = 1024;

/// Configuration of one relay: its services, and the limits that they share.
#[derive(Clone, Debug)]
pub struct Config {
    /// The services; at least one.
    pub services: Vec<ServiceConfig>,
    /// Limit on clients of all services together. Clients beyond it are reset.
    pub clients_max: u32,
    /// Limit on bytes of memory for waiting requests and replies of all clients, the transport's queues included.
    /// Above three quarters of the limit, requests of clients that do not read their replies are not read. At the
    /// limit, the clients that hold most memory are closed.
    pub memory_bytes_max: usize,
    /// Initial window of a plain client: bytes of replies that its server may send ahead of the client's connection.
    /// The window grows up to [`Limits::window_bytes`] while the client reads fast enough. Fixed when the relay starts.
    pub first_window_bytes: u32,
    /// Limit on bytes that wait for one library client. A client that grants its server more credit and does not read
    /// is reset. Bytes that wait for a plain client are bounded by [`Limits::window_bytes`].
    pub connection_buffer_bytes: usize,
    /// Time limits. Fixed when the relay starts.
    pub timeouts: Timeouts,
    /// Load queries and shedding of clients.
    pub load: LoadConfig,
    /// Limits on library clients that have not authenticated. Fixed when the relay starts.
    pub unauthenticated: Bounds,
}

/// Capacity of the relay's thread, answers to load queries, and shedding of clients.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadConfig {
    /// Whether load queries of library clients are answered.
    pub answers: bool,
    /// Share of a core that the relay's thread may use.
    pub cpu: f64,
    /// Network capacity in bytes per second, headers included, for requests and replies together. `None`: unknown.
    pub network_bytes: Option<u64>,
    /// When library clients are sent to other helpers. `None`: never.
    pub shedding: Option<SheddingSettings>,
}

impl Default for LoadConfig {
    fn default() -> LoadConfig {
        LoadConfig {
            answers: true,
            cpu: 1.0,
            network_bytes: None,
            shedding: Some(SheddingSettings::default()),
        }
    }
}

impl Config {
    /// A configuration of these services with default limits.
    pub fn new(services: Vec<ServiceConfig>) -> Config {
        Config {
            services,
            clients_max: 50_000,
            memory_bytes_max: 1 << 30,
            first_window_bytes: 16 * 1024,
            connection_buffer_bytes: 1 << 20,
            timeouts: Timeouts::default(),
            load: LoadConfig::default(),
            unauthenticated: Bounds::DEFAULT,
        }
    }

    /// Checks the configuration without applying it.
    ///
    /// # Errors
    /// The first problem that was found.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.services.is_empty() {
            return Err(ConfigError::NoServices);
        }
        if self.services.len() > SERVICES_MAX {
            return Err(ConfigError::TooManyServices);
        }
        let mut listeners = Vec::new();
        for (index, service) in self.services.iter().enumerate() {
            if self.services[..index].iter().any(|other| other.name == service.name) {
                return Err(ConfigError::NameTwice(service.name.clone()));
            }
            let name = || service.name.clone();
            if service.links == 0 {
                return Err(ConfigError::NoLinks(name()));
            }
            if service.keys.is_empty() && !service.server.ip().to_canonical().is_loopback() {
                return Err(ConfigError::NoKey(name()));
            }
            for listener in service.plain_listeners.iter().chain(&service.link_listeners) {
                if listeners.contains(listener) {
                    return Err(ConfigError::ListenerTwice(*listener));
                }
                listeners.push(*listener);
            }
        }
        Ok(())
    }
}

/// One server that is relieved, and the listeners of its clients.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// Name in status, logs and commands. Unique in a relay.
    pub name: String,
    /// The server's link port.
    pub server: SocketAddr,
    /// Other addresses of this server that library clients may request.
    pub server_aliases: Vec<SocketAddr>,
    /// Indexes of the transport's listeners for plain clients.
    pub plain_listeners: Vec<u16>,
    /// Indexes of the transport's listeners for library clients.
    pub link_listeners: Vec<u16>,
    /// This helper's keys for the server, newest first. The next key is tried when the server rejects one. Without
    /// keys, the server must be on loopback.
    pub keys: Vec<Key>,
    /// Keys of library clients. `None`: only library clients on loopback are accepted.
    pub client_keys: Option<KeyRing>,
    /// Addresses that may connect.
    pub clients: Vec<AddressRange>,
    /// Load balancers in front of `plain_listeners` that must announce their clients with a PROXY header. The announced
    /// addresses must be in `clients`. A PROXY header from any other address is forwarded as part of the requests.
    pub proxy_from: Vec<AddressRange>,
    /// Number of links from this relay to the server.
    pub links: u16,
    /// The server keeps replies to plain clients until their TCP has acknowledged them, so that another helper could
    /// take these clients over. Costs the server memory and a copy.
    pub acknowledges_replies: bool,
    /// When batches leave.
    pub policy: PolicyKind,
    /// Encryption of links to the server.
    pub encryption: Encryption,
    /// Encryption of library clients' links.
    pub client_encryption: Encryption,
    /// Limits of each link and of its connections.
    pub limits: Limits,
    /// How requests of plain clients are measured. `None`: no measurement.
    pub measurement: Option<Measurement>,
    /// Time limit for opening a link's connection. [`Limits::handshake_timeout`] limits the authentication after it.
    pub connect_timeout: Duration,
}

impl ServiceConfig {
    /// A service with the defaults: one link, private client addresses, batches delayed by at most 200 µs.
    pub fn new(name: impl Into<String>, server: SocketAddr) -> ServiceConfig {
        ServiceConfig {
            name: name.into(),
            server,
            server_aliases: Vec::new(),
            plain_listeners: Vec::new(),
            link_listeners: Vec::new(),
            keys: Vec::new(),
            client_keys: None,
            clients: AddressRange::private(),
            proxy_from: Vec::new(),
            links: 1,
            acknowledges_replies: false,
            policy: PolicyKind::Adaptive { max_delay: Duration::from_micros(200), max_bytes: 64 * 1024 },
            encryption: Encryption::Preferred,
            client_encryption: Encryption::Preferred,
            limits: Limits::default(),
            measurement: None,
            connect_timeout: Duration::from_secs(1),
        }
    }
}

impl ServiceConfig {
    /// Whether this is the service of the server that a library client requests. `None`: any server.
    pub(crate) fn serves(&self, server: Option<SocketAddr>) -> bool {
        server.is_none_or(|server| server == self.server || self.server_aliases.contains(&server))
    }
}

/// Time limits of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Time for a library client to authenticate.
    pub handshake: Duration,
    /// Time for a trusted load balancer to send its PROXY header.
    pub proxy_header: Duration,
    /// Time in which a client whose server has closed must acknowledge further bytes, or close.
    pub linger: Duration,
    /// Time for a client to read its replies while memory is scarce.
    pub unread: Duration,
    /// Maximum delay before a lost link is opened again after the first failure; a random part of up to a half is
    /// subtracted. Doubles with every further failure.
    pub reconnect_min: Duration,
    /// Maximum delay before a lost link is opened again after any number of failures.
    pub reconnect_max: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            handshake: Duration::from_secs(5),
            proxy_header: Duration::from_secs(5),
            linger: Duration::from_secs(10),
            unread: spillway_policy::memory::UNREAD_MAX,
            reconnect_min: Duration::from_millis(50),
            reconnect_max: Duration::from_secs(2),
        }
    }
}

/// Why a configuration was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The configuration has no service.
    NoServices,
    /// The service has no links.
    NoLinks(String),
    /// The service has no key and its server is not on loopback.
    NoKey(String),
    /// Two services, or plain and library clients of one service, use this listener.
    ListenerTwice(u16),
    /// Two services have this name.
    NameTwice(String),
    /// More than 1,024 services since the relay's start, removed ones included.
    TooManyServices,
    /// The relay is draining, and a new configuration would start its services again.
    Draining,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::NoServices => f.write_str("no service is configured: name at least one"),
            ConfigError::NoLinks(name) => write!(f, "service {name} has no links: set at least one"),
            ConfigError::NoKey(name) => write!(
                f,
                "service {name} has no key and its server is not on loopback: give it the server's helper key"
            ),
            ConfigError::NameTwice(name) => {
                write!(f, "two services are named {name}: give each its own name")
            }
            ConfigError::TooManyServices => write!(
                f,
                "more than {SERVICES_MAX} services since the helper's start, removed ones included: restart the helper"
            ),
            ConfigError::Draining => f.write_str("the helper is draining: start another one"),
            ConfigError::ListenerTwice(index) => {
                write!(f, "listener {index} is configured twice: give each use its own listener")
            }
        }
    }
}

impl core::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn invalid_configurations_are_rejected_with_the_cause() {
        let service = |server: &str| ServiceConfig::new("cache", server.parse().unwrap());
        assert_eq!(Config::new(vec![]).check(), Err(ConfigError::NoServices));
        let local = service("127.0.0.1:11411");
        assert_eq!(Config::new(vec![local.clone()]).check(), Ok(()));
        let remote = service("10.0.0.5:11411");
        assert_eq!(Config::new(vec![remote.clone()]).check(), Err(ConfigError::NoKey("cache".into())));
        let with_key = ServiceConfig { keys: vec![Key::from_secret([1; 32])], ..remote };
        assert_eq!(Config::new(vec![with_key]).check(), Ok(()));
        let same_names = vec![local.clone(), local.clone()];
        assert_eq!(Config::new(same_names).check(), Err(ConfigError::NameTwice("cache".into())));
        let twice = ServiceConfig { plain_listeners: vec![0, 1], link_listeners: vec![1], ..local.clone() };
        assert_eq!(Config::new(vec![twice]).check(), Err(ConfigError::ListenerTwice(1)));
        let without_links = ServiceConfig { links: 0, ..local };
        assert_eq!(Config::new(vec![without_links]).check(), Err(ConfigError::NoLinks("cache".into())));
    }
}
