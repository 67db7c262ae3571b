//! What a helper is told: by a file, by flags, or by a program that embeds it.

mod file;
mod problem;
mod reference;
mod schema;
mod show;
mod start_error;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use spillway_auth::{Key, KeyRing};
use spillway_batch::{AddressRange, PolicyKind, Role};
use spillway_daemon::AdminGroup;
use spillway_discovery::{EtcdAccess, EtcdFiles, EtcdPlace};

pub use file::{Reading, host_name, read_file, read_text};
pub use problem::{Problem, Problems};
pub use reference::reference;
pub use start_error::StartError;

/// Settings of a helper.
#[derive(Clone, Debug)]
pub struct HelperConfig {
    /// Names it in status, metrics and logs.
    pub name: String,
    /// What carries bytes.
    pub engine: Engine,
    /// Network threads; 0: one for each core this process may use, each on its core.
    pub threads: usize,
    /// Where status, reload and drain are asked for, if anywhere.
    pub socket: Option<PathBuf>,
    /// The group whose members may reload, drain and override over the socket; every other user may read. `None`: who
    /// may connect, may do all.
    pub admin_group: Option<AdminGroup>,
    /// Where metrics and the status page are served, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// Clients of all services and threads together.
    pub max_connections: u32,
    /// Bytes that all clients together may have buffered. From three quarters of it new clients are refused.
    pub max_memory_bytes: usize,
    /// How long clients may take to finish what is in flight, when the helper or one of its services goes.
    pub drain_deadline: Duration,
    /// Library clients that ask how loaded it is are answered, by datagram at the addresses where they come in.
    pub load_answers: bool,
    /// Bits each second that the network carries in one direction; none: not known.
    pub network_bits: Option<u64>,
    /// Load in percent from which library clients are sent to other helpers; 0: never.
    pub shed_above: u8,
    /// Load in percent below which that ends.
    pub shed_until: u8,
    /// The files of which each service's [`Register::access`] was made.
    pub etcd: EtcdFiles,
    /// The servers that it relieves; at least one.
    pub services: Vec<Service>,
}

/// What carries a helper's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Kernel sockets.
    #[default]
    Sockets,
    /// The best that there is on this host: kernel sockets in this version.
    Auto,
}

impl Engine {
    /// As in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Sockets => "sockets",
            Engine::Auto => "auto",
        }
    }
}

/// What clients and server speak, for request metrics. Bytes are never changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Anything: no request metrics.
    #[default]
    Tcp,
    /// memcached's.
    Memcached,
    /// redis's.
    Redis,
}

impl Protocol {
    /// As in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Memcached => "memcached",
            Protocol::Redis => "redis",
        }
    }
}

impl HelperConfig {
    /// These services with the defaults.
    pub fn new(services: Vec<Service>) -> HelperConfig {
        HelperConfig {
            name: host_name(),
            engine: Engine::default(),
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

    /// Says what cannot be started.
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
                && let Some(open) = service.link_listen.iter().find(|address| !address.ip().is_loopback())
            {
                return Err(StartError::NoClientKey { service: service.name.clone(), address: *open });
            }
            if service.require_encryption
                && (service.keys.is_empty()
                    || !service.link_listen.is_empty() && service.client_keys.is_empty())
            {
                return Err(StartError::EncryptionWithoutKey(service.name.clone()));
            }
            let place = |other: &Service| other.register.as_ref().map(|register| register.place.clone());
            if let Some(other) = self.services[..index].iter().find(|other| place(other) == place(service))
                && service.register.is_some()
            {
                let services = [other.name.clone(), service.name.clone()];
                return Err(StartError::SamePlace { services });
            }
            for address in service.listen.iter().chain(&service.link_listen) {
                if address.port() != 0 && listens.contains(address) {
                    return Err(StartError::SameAddress(*address));
                }
                listens.push(*address);
            }
        }
        Ok(())
    }
}

/// One server that is relieved.
#[derive(Clone, Debug)]
pub struct Service {
    /// For status, metrics and log.
    pub name: String,
    /// The server's link port.
    pub server: SocketAddr,
    /// Where plain clients come in: any TCP programs.
    pub listen: Vec<SocketAddr>,
    /// Where library clients come in.
    pub link_listen: Vec<SocketAddr>,
    /// This helper's keys for the server, newest first; none: only for a server on loopback.
    pub keys: Vec<Key>,
    /// Keys of library clients; none: they are served on loopback only.
    pub client_keys: Vec<Key>,
    /// Links that would not be encrypted are refused: to the server, and of library clients.
    pub require_encryption: bool,
    /// Who may connect. Empty: the private ranges, and loopback where the server is on loopback, too.
    pub clients: Vec<AddressRange>,
    /// Load balancers whose PROXY header is believed.
    pub proxy_protocol_from: Vec<AddressRange>,
    /// What is spoken, for request metrics.
    pub protocol: Protocol,
    /// Links to the server, of each thread.
    pub links_per_thread: u16,
    /// How long the server may take to accept a link's connection.
    pub connect_timeout: Duration,
    /// Idle time after which a client is asked whether it is alive; none: never.
    pub client_keepalive: Option<Duration>,
    /// The latency that 99 of 100 requests are to stay below, where it is known.
    pub sla: Option<Duration>,
    /// Has the server keep its replies to plain clients until their TCP has acknowledged them. Not in the configuration
    /// file: nothing takes such clients over yet.
    pub acknowledges_replies: bool,
    /// When batches go.
    pub policy: PolicyKind,
    /// Bytes of replies that may wait for one client before the server is told to wait.
    pub connection_buffer_bytes: u32,
    /// Where clients are told of this helper, if anywhere.
    pub register: Option<Register>,
}

/// How long batches may wait where nothing else is said: a quarter of the SLA, so that three quarters are left for the
/// server, the network and the client.
pub fn default_max_delay(sla: Option<Duration>) -> Duration {
    sla.map_or(Duration::from_micros(200), |sla| sla / 4)
}

/// Where a service's clients are told of a helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// Under which prefix; the helper's name follows it.
    pub place: EtcdPlace,
    /// Which etcd is trusted, and as whom it is asked.
    pub access: EtcdAccess,
    /// The address that library clients connect to.
    pub link: SocketAddr,
}

impl Service {
    /// A service with the defaults, that nobody can reach yet.
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

    /// The keys of library clients as a ring, if they need any.
    pub(crate) fn client_ring(&self) -> Option<KeyRing> {
        let mut ring = KeyRing::new();
        self.client_keys.iter().for_each(|key| ring.accept(Role::Client, key.clone()));
        (!ring.is_empty()).then_some(ring)
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
        let key = Key::from_secret([1; 32]);
        assert_eq!(check(vec![Service { client_keys: vec![key], ..open }]), Ok(()));
        let port = "127.0.0.1:11211".parse().unwrap();
        let twice = Service { listen: vec![port], link_listen: vec![port], ..cache };
        assert!(check(vec![twice]).unwrap_err().contains("11211"));
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
