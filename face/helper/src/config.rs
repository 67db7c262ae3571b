//! What a helper is told, and what can be wrong with it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use spillway_auth::{Key, KeyRing};
use spillway_batch::{AddressRange, PolicyKind};
use spillway_net::BindError;
use spillway_relay::ConfigError;

/// Settings of a helper.
#[derive(Clone, Debug)]
pub struct HelperConfig {
    /// The servers that it relieves; at least one.
    pub services: Vec<Service>,
    /// Network threads; 0: one for each core this process may use, each on its core.
    pub threads: usize,
    /// When batches go.
    pub policy: PolicyKind,
    /// Clients of all services and threads together.
    pub max_connections: u32,
    /// Bytes that all clients together may have buffered.
    pub max_memory_bytes: usize,
    /// Where status is read, if anywhere.
    pub status_socket: Option<PathBuf>,
    /// Where metrics and the status page are read over HTTP, if anywhere. Whoever reaches it may read.
    pub metrics: Option<SocketAddr>,
    /// How long clients may take to finish what is in flight, when the helper is told to go.
    pub drain_deadline: Duration,
}

impl HelperConfig {
    /// These services with the defaults.
    pub fn new(services: Vec<Service>) -> HelperConfig {
        HelperConfig {
            services,
            threads: 0,
            policy: PolicyKind::Adaptive { max_delay: Duration::from_micros(200), max_bytes: 64 << 10 },
            max_connections: 50_000,
            max_memory_bytes: 1 << 30,
            status_socket: None,
            metrics: None,
            drain_deadline: Duration::from_secs(30),
        }
    }

    /// Says what cannot be started.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        for (index, service) in self.services.iter().enumerate() {
            if self.services[..index].iter().any(|other| other.name == service.name) {
                return Err(StartError::SameName(service.name.clone()));
            }
            if service.listen.is_empty() && service.link_listen.is_empty() {
                return Err(StartError::NoListener(service.name.clone()));
            }
            if service.client_keys.is_none()
                && let Some(open) = service.link_listen.iter().find(|address| !address.ip().is_loopback())
            {
                return Err(StartError::NoClientKey { service: service.name.clone(), address: *open });
            }
        }
        Ok(())
    }
}

/// One server that is relieved.
#[derive(Clone, Debug)]
pub struct Service {
    /// For status and log.
    pub name: String,
    /// The server's link port.
    pub server: SocketAddr,
    /// Where plain clients come in: any TCP programs.
    pub listen: Vec<SocketAddr>,
    /// Where library clients come in.
    pub link_listen: Vec<SocketAddr>,
    /// This helper's key for the server; none: only for a server on loopback.
    pub key: Option<Key>,
    /// Keys of library clients; none: they are served on loopback only.
    pub client_keys: Option<KeyRing>,
    /// Who may connect. Empty: the private ranges, and loopback where the server is on loopback, too.
    pub clients: Vec<AddressRange>,
    /// Load balancers that must say, by the PROXY protocol, who their clients are, and are believed.
    pub proxy_from: Vec<AddressRange>,
}

impl Service {
    /// A service that nobody can reach yet.
    pub fn new(name: impl Into<String>, server: SocketAddr) -> Service {
        Service {
            name: name.into(),
            server,
            listen: Vec::new(),
            link_listen: Vec::new(),
            key: None,
            client_keys: None,
            clients: Vec::new(),
            proxy_from: Vec::new(),
        }
    }

    /// Who may connect, the default resolved.
    pub(crate) fn client_ranges(&self) -> Vec<AddressRange> {
        if !self.clients.is_empty() {
            return self.clients.clone();
        }
        // A loopback address means nothing to another host, so the server would refuse it.
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let serves_loopback = self.server.ip().to_canonical().is_loopback();
        let mut ranges = AddressRange::private();
        ranges.retain(|range| serves_loopback || !loopback.iter().any(|address| range.contains(*address)));
        ranges
    }

    /// Listeners at which no client can come in whose address the server would take.
    pub(crate) fn useless_listeners(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        let serves_loopback = self.server.ip().to_canonical().is_loopback();
        let all = self.listen.iter().chain(&self.link_listen).copied();
        all.filter(move |address| address.ip().is_loopback() && !serves_loopback)
    }
}

/// Why a helper does not start. Its text tells the operator the next step.
#[derive(Debug)]
pub enum StartError {
    /// Two services of one name.
    SameName(String),
    /// A service that no client can reach.
    NoListener(String),
    /// Library clients from other hosts need a key.
    NoClientKey {
        /// Of which service.
        service: String,
        /// Where they would come in.
        address: SocketAddr,
    },
    /// The relay cannot serve this.
    Relay(ConfigError),
    /// An address cannot be listened on.
    Bind(BindError),
    /// Metrics cannot be served there.
    Metrics {
        /// Where.
        address: SocketAddr,
        /// The host's error.
        error: io::Error,
    },
    /// The status socket cannot be made.
    StatusSocket {
        /// Its path.
        path: PathBuf,
        /// The host's error.
        error: io::Error,
    },
    /// The host gave no random bytes, no thread or no descriptor.
    Host(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::SameName(name) => write!(f, "two services are named {name}: give each its own name"),
            StartError::NoListener(name) => write!(
                f,
                "service {name} has no port for clients: give --listen ADDR for plain clients, \
                 --link-listen ADDR for library clients, or both"
            ),
            StartError::NoClientKey { service, address } => write!(
                f,
                "service {service} would take library clients of other hosts at {address} without a key: \
                 give --client-key FILE, or listen on loopback"
            ),
            StartError::Relay(error) => error.fmt(f),
            StartError::Bind(error) => error.fmt(f),
            StartError::Metrics { address, error } => {
                write!(f, "cannot serve metrics at {address}: {error}; give another address to --metrics")
            }
            StartError::StatusSocket { path, error } => {
                write!(f, "cannot serve status at {}: {error}", path.display())?;
                match error.kind() {
                    io::ErrorKind::AddrInUse => f.write_str("; another helper answers there"),
                    io::ErrorKind::NotFound => f.write_str("; create its directory"),
                    _ => Ok(()),
                }
            }
            StartError::Host(error) => write!(f, "this host cannot run a helper: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, server: &str) -> Service {
        let mut service = Service::new(name, server.parse().unwrap());
        service.listen.push("127.0.0.1:0".parse().unwrap());
        service
    }

    #[test]
    fn says_what_is_wrong_and_what_to_do() {
        let check = |services: Vec<Service>| HelperConfig::new(services).check().map_err(|e| e.to_string());
        let cache = service("cache", "127.0.0.1:11411");
        assert_eq!(check(vec![cache.clone()]), Ok(()));
        assert!(
            check(vec![cache.clone(), cache.clone()]).unwrap_err().contains("two services are named cache")
        );
        let closed = Service { listen: Vec::new(), ..cache.clone() };
        assert!(check(vec![closed]).unwrap_err().contains("--listen"));
        let open = Service { link_listen: vec!["0.0.0.0:0".parse().unwrap()], ..cache.clone() };
        assert!(check(vec![open.clone()]).unwrap_err().contains("--client-key"));
        assert_eq!(check(vec![Service { client_keys: Some(KeyRing::new()), ..open }]), Ok(()));
    }

    #[test]
    fn loopback_clients_are_for_loopback_servers() {
        let contains = |service: &Service, address: &str| {
            service.client_ranges().iter().any(|range| range.contains(address.parse().unwrap()))
        };
        let (near, far) = (service("a", "127.0.0.1:1"), service("b", "10.0.0.5:1"));
        assert!(contains(&near, "127.0.0.1") && contains(&near, "::1") && contains(&near, "10.1.2.3"));
        assert!(!contains(&far, "127.0.0.1") && !contains(&far, "::1") && contains(&far, "10.1.2.3"));
        assert!(!contains(&far, "198.51.100.1"));
        assert_eq!((near.useless_listeners().count(), far.useless_listeners().count()), (0, 1));
        let told = Service { clients: vec!["198.51.100.0/24".parse().unwrap()], ..far };
        assert!(contains(&told, "198.51.100.1") && !contains(&told, "10.1.2.3"));
    }
}
