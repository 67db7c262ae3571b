//! The configuration of a switch, with the names that case files give its parts.

mod parse;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::mac::Mac;

/// Number of the daemon's port. It has no interface.
pub const DAEMON_PORT: u8 = 63;

/// Number of the interface's port in host mode.
pub const HOST_PORT: u8 = 0;

/// Number of the local server's port in host mode.
pub const LOCAL_PORT: u8 = 62;

/// In place of an ingress port: a frame that leaves a host through its interface.
pub const EGRESS: u8 = 64;

/// Id of the daemon's entry in the table of servers.
pub const DAEMON: u8 = 0;

/// A port of the switch.
#[derive(Clone, Debug)]
pub struct Port {
    /// 0 to 62.
    pub number: u8,
    /// MAC of its interface.
    pub mac: Mac,
    /// Whether control messages are accepted from it.
    pub is_server: bool,
    /// Numbers of the services whose rules the servers at this port may change.
    pub may_own: BTreeSet<u8>,
}

/// A host, or another device with an Ethernet address.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its MAC.
    pub mac: Mac,
    /// Its port if it is a configured station.
    pub port: Option<u8>,
    /// Its addresses: at most one of each family.
    pub addresses: Vec<IpAddr>,
}

/// A route.
#[derive(Clone, Debug)]
pub struct Prefix {
    /// Address with zeros after the prefix.
    pub address: IpAddr,
    /// Length in bits.
    pub bits: u8,
    /// MAC of the next hop.
    pub mac: Mac,
    /// Port of the next hop.
    pub port: u8,
}

/// A server, or the daemon.
#[derive(Clone, Debug)]
pub struct Server {
    /// 0 for the daemon.
    pub id: u8,
    /// Key of its control messages.
    pub key: [u8; 16],
    /// Address to which control messages for it are sent.
    pub address: IpAddr,
    /// Its MAC.
    pub mac: Mac,
    /// Its port.
    pub port: u8,
}

/// An address and port at which a server has connections of a service.
#[derive(Clone, Debug)]
pub struct Place {
    /// Address and port at the server.
    pub at: SocketAddr,
    /// Address and port to which clients connect; the same for a service endpoint.
    pub service: SocketAddr,
    /// Number of the service.
    pub number: u8,
    /// The server. Of a service endpoint: its original owner.
    pub server: u8,
}

impl Place {
    /// Whether clients connect to it.
    pub fn is_endpoint(&self) -> bool {
        self.at == self.service
    }
}

/// The configuration of a switch.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The switch runs on the interface of the local server, whose host is at the port with number [`LOCAL_PORT`].
    pub is_host: bool,
    /// Ports by name, without the daemon's.
    pub ports: BTreeMap<String, Port>,
    /// Hosts by name.
    pub hosts: BTreeMap<String, Host>,
    /// Routes.
    pub prefixes: Vec<Prefix>,
    /// Addresses of the switch.
    pub own_addresses: Vec<IpAddr>,
    /// Addresses of the control endpoint: at most one of each family.
    pub control_addresses: Vec<IpAddr>,
    /// UDP port of the control endpoint.
    pub control_port: u16,
    /// Servers by the name of their host; the daemon is `daemon`.
    pub servers: BTreeMap<String, Server>,
    /// Places by name, service endpoints included.
    pub places: BTreeMap<String, Place>,
    /// Time without heartbeats after which an owner is silent.
    pub owner_timeout_ns: u64,
    /// Start time of the switch.
    pub epoch: u64,
    /// Maximum number of flows.
    pub flows_max: u32,
    /// Maximum number of flows of single services, by their numbers.
    pub service_flows_max: BTreeMap<u8, u32>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            is_host: false,
            ports: BTreeMap::new(),
            hosts: BTreeMap::new(),
            prefixes: Vec::new(),
            own_addresses: Vec::new(),
            control_addresses: Vec::new(),
            control_port: 7100,
            servers: BTreeMap::new(),
            places: BTreeMap::new(),
            owner_timeout_ns: 1_000_000_000,
            epoch: 1_700_000_000_000_000_000,
            flows_max: 1024,
            service_flows_max: BTreeMap::new(),
        }
    }
}

impl Setup {
    /// The port with this number.
    pub fn port(&self, number: u8) -> Option<&Port> {
        self.ports.values().find(|port| port.number == number)
    }

    /// Number of a port by its name, also of the daemon's; [`EGRESS`] for `egress`.
    pub fn port_number(&self, name: &str) -> Option<u8> {
        match name {
            "daemon" => Some(DAEMON_PORT),
            "egress" if self.is_host => Some(EGRESS),
            _ => self.ports.get(name).map(|port| port.number),
        }
    }

    /// Name of a port, for messages.
    pub fn port_name(&self, number: u8) -> String {
        let named = self.ports.iter().find(|(_, port)| port.number == number);
        named.map_or_else(|| format!("port {number}"), |(name, _)| name.clone())
    }

    /// The server with this id.
    pub fn server(&self, id: u8) -> Option<&Server> {
        self.servers.values().find(|server| server.id == id)
    }

    /// Name of a server, for messages.
    pub fn server_name(&self, id: u8) -> String {
        let named = self.servers.iter().find(|(_, server)| server.id == id);
        named.map_or_else(|| format!("server {id}"), |(name, _)| name.clone())
    }

    /// The MAC of a host or of a port's interface, by name.
    pub fn mac(&self, name: &str) -> Option<Mac> {
        let port = || self.ports.get(name).map(|port| port.mac);
        self.hosts.get(name).map(|host| host.mac).or_else(port)
    }

    /// The host that has this address.
    pub fn host_at(&self, address: IpAddr) -> Option<&Host> {
        self.hosts.values().find(|host| host.addresses.contains(&address))
    }

    /// The control endpoint's address of the same family as `address`.
    pub fn control_address(&self, address: IpAddr) -> Option<IpAddr> {
        self.control_addresses.iter().copied().find(|control| control.is_ipv4() == address.is_ipv4())
    }

    /// Removes a server with its places, and the services of which it is the original owner. Its host stays.
    pub fn remove_server(&mut self, id: u8) {
        self.servers.retain(|_, server| server.id != id);
        self.places.retain(|_, place| place.server != id);
        let endpoints: Vec<SocketAddr> =
            self.places.values().filter(|place| place.is_endpoint()).map(|place| place.at).collect();
        self.places.retain(|_, place| endpoints.contains(&place.service));
    }

    /// All ports to which a packet is flooded that arrived at `ingress`, in order.
    pub fn flooded(&self, ingress: u8) -> Vec<u8> {
        let mut ports: Vec<u8> =
            self.ports.values().map(|port| port.number).filter(|port| *port != ingress).collect();
        ports.sort_unstable();
        ports
    }
}
