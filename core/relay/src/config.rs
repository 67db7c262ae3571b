//! What a helper is told: when it starts, and when its settings change.

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

/// Fills a buffer with bytes for nonces and jitter: unpredictable ones in production, those of a seeded generator
/// in the simulator.
pub type Random = Box<dyn FnMut(&mut [u8]) + Send>;

/// Services of a relay in its life: a name keeps its place, so that counters and notices keep their meaning.
pub(crate) const SERVICES_MAX: usize = 1024;

/// All services of one relay, and what they share.
#[derive(Clone, Debug)]
pub struct Config {
    /// At least one.
    pub services: Vec<ServiceConfig>,
    /// Clients of all services together; one more is reset.
    pub clients_max: u32,
    /// Bytes of memory that hold what waits for and from all clients together, in the transport's queues too. Who
    /// holds most and does not read is paused at three quarters, and closed at the bound.
    pub memory_bytes_max: usize,
    /// Bytes that a server may send to a plain client that has just come, ahead of what its connection takes. It grows up to
    /// [`Limits::window_bytes`] while the client reads as much at once.
    pub first_window_bytes: u32,
    /// Bytes that wait for one library client. One that grants its server more and does not read is reset.
    /// What waits for a plain client is bounded by [`Limits::window_bytes`].
    pub connection_buffer_bytes: usize,
    /// How long to wait.
    pub timeouts: Timeouts,
    /// What clients are told of its load, and what is done when it is too high.
    pub load: LoadConfig,
    /// How many library clients may wait for authentication. Fixed when the relay starts.
    pub unauthenticated: Bounds,
}

/// Load: what there is, and what is done about it.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadConfig {
    /// Library clients that ask are answered.
    pub answers: bool,
    /// Share of a core that the relay's thread can have.
    pub cpu: f64,
    /// Bytes each second, headers included, that it may use of the network, requests and replies together; none: not
    /// known.
    pub network_bytes: Option<u64>,
    /// When library clients are sent away; none: never.
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
    /// These services with the default bounds.
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

    /// Says what cannot be served.
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
            for listener in service.raw_listeners.iter().chain(&service.link_listeners) {
                if listeners.contains(listener) {
                    return Err(ConfigError::ListenerTwice(*listener));
                }
                listeners.push(*listener);
            }
        }
        Ok(())
    }
}

/// One server that is relieved, and where its clients come in.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// For status and log.
    pub name: String,
    /// The server's link port.
    pub server: SocketAddr,
    /// Other addresses by which library clients may ask for this server.
    pub server_aliases: Vec<SocketAddr>,
    /// Indexes of the transport's listeners where plain clients come in.
    pub raw_listeners: Vec<u16>,
    /// Indexes of the transport's listeners where library clients come in.
    pub link_listeners: Vec<u16>,
    /// This helper's keys for the server, newest first: the next is tried where the server does not accept one.
    /// None: only a server on loopback is served.
    pub keys: Vec<Key>,
    /// Keys of library clients. `None`: only library clients on loopback are served.
    pub client_keys: Option<KeyRing>,
    /// Who may connect.
    pub clients: Vec<AddressRange>,
    /// Load balancers in front of `raw_listeners` that must say, by a PROXY header, who their clients are. Those
    /// clients must be in `clients`. Whoever else sends such a header is not believed: to us it is a request.
    pub proxy_from: Vec<AddressRange>,
    /// Links to the server, of this relay.
    pub links: u16,
    /// Has the server keep what it replies to plain clients until their TCP has acknowledged it. It costs the server
    /// memory and a copy, and is the ground on which another helper could take them over.
    pub acknowledges_replies: bool,
    /// When batches go.
    pub policy: PolicyKind,
    /// Whether links to the server are encrypted.
    pub encryption: Encryption,
    /// Whether links of library clients are.
    pub client_encryption: Encryption,
    /// Bounds of each link and of its connections.
    pub limits: Limits,
    /// How long the server may take to accept a link's connection. Authentication has
    /// [`Limits::handshake_timeout`].
    pub connect_timeout: Duration,
}

impl ServiceConfig {
    /// A service with the defaults: one link, private client addresses, batches delayed by at most 200 µs.
    pub fn new(name: impl Into<String>, server: SocketAddr) -> ServiceConfig {
        ServiceConfig {
            name: name.into(),
            server,
            server_aliases: Vec::new(),
            raw_listeners: Vec::new(),
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
            connect_timeout: Duration::from_secs(1),
        }
    }
}

impl ServiceConfig {
    /// Whether a library client that wants this server finds it at this service.
    pub(crate) fn serves(&self, wanted: Option<SocketAddr>) -> bool {
        wanted.is_none_or(|wanted| wanted == self.server || self.server_aliases.contains(&wanted))
    }
}

/// How long to wait for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a library client to authenticate.
    pub handshake: Duration,
    /// For a trusted load balancer to send its PROXY header.
    pub proxy_header: Duration,
    /// For a client to take what is left for it, from one sign of progress to the next, and to close.
    pub linger: Duration,
    /// For a client to read what waits for it, while memory is scarce.
    pub unread: Duration,
    /// Before a lost link is opened again, at first. Doubles with every failure.
    pub reconnect_min: Duration,
    /// Before a lost link is opened again, at most.
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

/// Why a configuration cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// Nothing to do.
    NoServices,
    /// A service without links.
    NoLinks(String),
    /// No key for a server that is not on loopback.
    NoKey(String),
    /// Two uses of one listener.
    ListenerTwice(u16),
    /// Two services of one name.
    NameTwice(String),
    /// More services than a relay may have in its life, those that were removed included.
    TooManyServices,
    /// The relay goes away: other settings would bring its services back.
    GoingAway,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::NoServices => f.write_str("no service to relay for: name at least one"),
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
                "a helper serves at most {SERVICES_MAX} services in its life, removed ones included: restart it"
            ),
            ConfigError::GoingAway => f.write_str("the helper is going away: start another one"),
            ConfigError::ListenerTwice(index) => write!(f, "listener {index} is given to two uses"),
        }
    }
}

impl core::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn says_what_is_wrong() {
        let service = |server: &str| ServiceConfig::new("cache", server.parse().unwrap());
        assert_eq!(Config::new(vec![]).check(), Err(ConfigError::NoServices));
        let local = service("127.0.0.1:11411");
        assert_eq!(Config::new(vec![local.clone()]).check(), Ok(()));
        let remote = service("10.0.0.5:11411");
        assert_eq!(Config::new(vec![remote.clone()]).check(), Err(ConfigError::NoKey("cache".into())));
        let keyed = ServiceConfig { keys: vec![Key::from_secret([1; 32])], ..remote };
        assert_eq!(Config::new(vec![keyed]).check(), Ok(()));
        let namesakes = vec![local.clone(), local.clone()];
        assert_eq!(Config::new(namesakes).check(), Err(ConfigError::NameTwice("cache".into())));
        let twice = ServiceConfig { raw_listeners: vec![0, 1], link_listeners: vec![1], ..local.clone() };
        assert_eq!(Config::new(vec![twice]).check(), Err(ConfigError::ListenerTwice(1)));
        let linkless = ServiceConfig { links: 0, ..local };
        assert_eq!(Config::new(vec![linkless]).check(), Err(ConfigError::NoLinks("cache".into())));
    }
}
