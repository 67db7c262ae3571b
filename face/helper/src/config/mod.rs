//! Settings of a helper: from a file, from flags, or from a program that embeds the helper.

mod engine;
mod file;
mod name;
mod reference;
mod schema;
mod separate_address;
mod show;
mod start_error;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use spillway_auth::{Key, KeyRing};
use spillway_batch::{AddressRange, PolicyKind, Role};
use spillway_daemon::AdminGroup;
use spillway_discovery::{EtcdAccess, EtcdFiles, EtcdPrefix};

use crate::engine::{XdpError, check_addresses};

pub use engine::{DEFER_INTERRUPTS_MAX, Engine, XdpConfig, parse_ports};
pub use file::read_file;
pub use name::host_name;
pub use reference::reference;
pub use separate_address::{SeparateAddress, parse_separate_address};
pub use start_error::StartError;

/// Settings of a helper.
#[derive(Clone, Debug)]
pub struct HelperConfig {
    /// Name of the helper in status, metrics and logs.
    pub name: String,
    /// Transport of all connections.
    pub engine: Engine,
    /// The network interface of the engine `xdp`.
    pub interface: Option<String>,
    /// Settings of the engine `xdp`.
    pub xdp: XdpConfig,
    /// Number of network threads; 0: one pinned to each core that the process may use.
    pub threads: usize,
    /// Path of the admin socket.
    pub socket: Option<PathBuf>,
    /// The group whose members may reload, drain and override over the socket; every other user may read. `None`: every
    /// user who can connect may operate.
    pub admin_group: Option<AdminGroup>,
    /// Address of the HTTP port for metrics and the status page.
    pub metrics: Option<SocketAddr>,
    /// Maximum number of clients of all services.
    pub max_connections: u32,
    /// Limit on the buffers of all clients, in bytes.
    pub max_memory_bytes: usize,
    /// Time for clients to finish when the helper or one of its services drains.
    pub drain_deadline: Duration,
    /// Whether the helper answers load queries of library clients, by UDP at [`Service::link_listen`].
    pub load_answers: bool,
    /// Bandwidth of the network in one direction, in bits per second, if known.
    pub network_bits: Option<u64>,
    /// Load in percent from which library clients are sent to other helpers; 0: never.
    pub shed_above: u8,
    /// Load in percent below which no more clients are sent away.
    pub shed_until: u8,
    /// Files and user for etcd, from which each [`Register::access`] was made.
    pub etcd: EtcdFiles,
    /// The servers to relieve; at least one.
    pub services: Vec<Service>,
}

/// Protocol of clients and server, for request metrics. Bytes are never changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Any protocol on TCP: no request metrics.
    #[default]
    Tcp,
    /// The memcached protocol.
    Memcached,
    /// The redis protocol.
    Redis,
}

impl Protocol {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Memcached => "memcached",
            Protocol::Redis => "redis",
        }
    }
}

impl HelperConfig {
    /// Defaults with the given services.
    pub fn new(services: Vec<Service>) -> HelperConfig {
        HelperConfig {
            name: host_name(),
            engine: Engine::default(),
            interface: None,
            xdp: XdpConfig::default(),
            threads: 0,
            socket: None,
            admin_group: None,
            metrics: None,
            max_connections: 50_000,
            max_memory_bytes: 1 << 30,
            drain_deadline: Duration::from_secs(30),
            load_answers: true,
            network_bits: None,
            shed_above: 95,
            shed_until: 85,
            etcd: EtcdFiles::default(),
            services,
        }
    }

    /// Fails if a helper cannot run with these settings.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let mut listens: Vec<SocketAddr> = Vec::new();
        for (index, service) in self.services.iter().enumerate() {
            if self.services[..index].iter().any(|other| other.name == service.name) {
                return Err(StartError::SameName(service.name.clone()));
            }
            if service.listen.is_empty() && service.link_listen.is_empty() {
                return Err(StartError::NoListener(service.name.clone()));
            }
            if service.client_keys.is_empty()
                && let Some(public) = service.link_listen.iter().find(|address| !address.ip().is_loopback())
            {
                return Err(StartError::NoClientKey { service: service.name.clone(), address: *public });
            }
            if service.require_encryption
                && (service.keys.is_empty()
                    || !service.link_listen.is_empty() && service.client_keys.is_empty())
            {
                return Err(StartError::EncryptionWithoutKey(service.name.clone()));
            }
            let place = |other: &Service| other.register.as_ref().map(|register| register.prefix.clone());
            if let Some(other) = self.services[..index].iter().find(|other| place(other) == place(service))
                && service.register.is_some()
            {
                let services = [other.name.clone(), service.name.clone()];
                return Err(StartError::SamePrefix { services });
            }
            for address in service.listen.iter().chain(&service.link_listen) {
                if address.port() != 0 && listens.contains(address) {
                    return Err(StartError::SameAddress(*address));
                }
                listens.push(*address);
            }
        }
        if self.engine == Engine::Xdp {
            if self.interface.is_none() {
                return Err(StartError::Xdp(XdpError::NoInterface));
            }
            check_addresses(self).map_err(StartError::Xdp)?;
        }
        Ok(())
    }
}

/// A server to relieve, with its clients.
#[derive(Clone, Debug)]
pub struct Service {
    /// Name in status, metrics and logs.
    pub name: String,
    /// The server's link port.
    pub server: SocketAddr,
    /// Listening addresses for plain clients.
    pub listen: Vec<SocketAddr>,
    /// Listening addresses for library clients.
    pub link_listen: Vec<SocketAddr>,
    /// This helper's keys for the server, newest first. Only a server on loopback needs no key.
    pub keys: Vec<Key>,
    /// Keys of library clients. Without keys, library clients are served on loopback only.
    pub client_keys: Vec<Key>,
    /// Whether to refuse links without encryption, to the server and from library clients.
    pub require_encryption: bool,
    /// Clients that may connect. Empty: the private ranges, with loopback if the server is on loopback.
    pub clients: Vec<AddressRange>,
    /// Load balancers that announce their clients by PROXY protocol.
    pub proxy_protocol_from: Vec<AddressRange>,
    /// Protocol of the requests, for request metrics.
    pub protocol: Protocol,
    /// With a protocol other than `tcp`, one in `measure_one_in` plain clients is measured; 0: none.
    pub measure_one_in: u32,
    /// Links from each thread to the server.
    pub links_per_thread: u16,
    /// Timeout for connecting a link.
    pub connect_timeout: Duration,
    /// Idle time after which TCP keep-alive probes a client; `None`: never.
    pub client_keepalive: Option<Duration>,
    /// Latency that 99 of 100 requests should stay below, if known.
    pub sla: Option<Duration>,
    /// Whether the server keeps its replies to plain clients until the clients' TCP has acknowledged them. Not in the
    /// configuration file: no component takes over such clients yet.
    pub acknowledges_replies: bool,
    /// Batch policy.
    pub policy: PolicyKind,
    /// Bytes of replies that may wait for one client before the server must pause.
    pub connection_buffer_bytes: u32,
    /// Registration by which clients find this helper.
    pub register: Option<Register>,
}

/// Default of `max_delay`: a quarter of the SLA leaves three quarters for the server, the network and the client.
pub fn default_max_delay(sla: Option<Duration>) -> Duration {
    sla.map_or(Duration::from_micros(200), |sla| sla / 4)
}

/// Registration of a helper in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// Prefix of the key; the helper's name follows it.
    pub prefix: EtcdPrefix,
    /// Certificates and user for etcd.
    pub access: EtcdAccess,
    /// The address that library clients connect to.
    pub link: SocketAddr,
}

impl Service {
    /// A service with the defaults, and without listening addresses.
    pub fn new(name: impl Into<String>, server: SocketAddr) -> Service {
        Service {
            name: name.into(),
            server,
            listen: Vec::new(),
            link_listen: Vec::new(),
            keys: Vec::new(),
            client_keys: Vec::new(),
            require_encryption: false,
            clients: Vec::new(),
            proxy_protocol_from: Vec::new(),
            protocol: Protocol::default(),
            measure_one_in: 16,
            links_per_thread: 1,
            connect_timeout: Duration::from_secs(1),
            client_keepalive: Some(Duration::from_secs(30)),
            sla: None,
            acknowledges_replies: false,
            policy: PolicyKind::Adaptive { max_delay: default_max_delay(None), max_bytes: 64 << 10 },
            connection_buffer_bytes: 256 << 10,
            register: None,
        }
    }

    /// The keys of library clients; `None` without keys.
    pub(crate) fn client_ring(&self) -> Option<KeyRing> {
        let mut ring = KeyRing::new();
        self.client_keys.iter().for_each(|key| ring.accept(Role::Client, key.clone()));
        (!ring.is_empty()).then_some(ring)
    }

    /// [`clients`](Self::clients), or its default.
    pub(crate) fn client_ranges(&self) -> Vec<AddressRange> {
        if !self.clients.is_empty() {
            return self.clients.clone();
        }
        // A server on another host refuses loopback addresses, because they have no meaning there.
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let serves_loopback = self.server.ip().to_canonical().is_loopback();
        let mut ranges = AddressRange::private();
        ranges.retain(|range| serves_loopback || !loopback.iter().any(|address| range.contains(*address)));
        ranges
    }

    /// Listening addresses whose clients the server would refuse because of their loopback addresses.
    pub(crate) fn ineffective_listeners(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        let serves_loopback = self.server.ip().to_canonical().is_loopback();
        let addresses = self.listen.iter().chain(&self.link_listen).copied();
        addresses.filter(move |address| address.ip().is_loopback() && !serves_loopback)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, server: &str) -> Service {
        let mut service = Service::new(name, server.parse().unwrap());
        service.listen.push("127.0.0.1:0".parse().unwrap());
        service
    }

    #[test]
    fn unusable_settings_give_an_error_with_the_next_step() {
        let check = |services: Vec<Service>| HelperConfig::new(services).check().map_err(|e| e.to_string());
        let cache = service("cache", "127.0.0.1:11411");
        assert_eq!(check(vec![cache.clone()]), Ok(()));
        assert!(
            check(vec![cache.clone(), cache.clone()]).unwrap_err().contains("two services are named cache")
        );
        let without_listener = Service { listen: Vec::new(), ..cache.clone() };
        assert!(check(vec![without_listener]).unwrap_err().contains("--listen"));
        let without_client_key = Service { link_listen: vec!["0.0.0.0:0".parse().unwrap()], ..cache.clone() };
        assert!(check(vec![without_client_key.clone()]).unwrap_err().contains("--client-key"));
        let key = Key::from_secret([1; 32]);
        assert_eq!(check(vec![Service { client_keys: vec![key], ..without_client_key }]), Ok(()));
        let port = "127.0.0.1:11211".parse().unwrap();
        let same_address = Service { listen: vec![port], link_listen: vec![port], ..cache };
        assert!(check(vec![same_address]).unwrap_err().contains("11211"));
    }

    #[test]
    fn loopback_clients_are_allowed_only_for_loopback_servers() {
        let contains = |service: &Service, address: &str| {
            service.client_ranges().iter().any(|range| range.contains(address.parse().unwrap()))
        };
        let (local, remote) = (service("a", "127.0.0.1:1"), service("b", "10.0.0.5:1"));
        assert!(contains(&local, "127.0.0.1") && contains(&local, "::1") && contains(&local, "10.1.2.3"));
        assert!(
            !contains(&remote, "127.0.0.1") && !contains(&remote, "::1") && contains(&remote, "10.1.2.3")
        );
        assert!(!contains(&remote, "198.51.100.1"));
        assert_eq!((local.ineffective_listeners().count(), remote.ineffective_listeners().count()), (0, 1));
        let configured = Service { clients: vec!["198.51.100.0/24".parse().unwrap()], ..remote };
        assert!(contains(&configured, "198.51.100.1") && !contains(&configured, "10.1.2.3"));
    }
}
