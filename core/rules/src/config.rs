//! The switch's configuration: constant until the next reload.

mod check;
mod error;
mod homes;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use spillway_auth::SwitchKey;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{Endpoint, ServerId};

use crate::address::Address;

pub use error::ConfigError;

/// Maximum number of ports, the daemon's included: numbers 0 to 63.
pub const PORTS_MAX: usize = 64;
/// Maximum number of stations.
pub const STATIONS_MAX: usize = 4096;
/// Maximum number of prefixes.
pub const PREFIXES_MAX: usize = 1024;
/// Maximum number of the host's own addresses.
pub const OWN_ADDRESSES_MAX: usize = 64;
/// Maximum number of senders of control messages: id 0 is the daemon, the others are servers.
pub const SENDERS_MAX: usize = 256;
/// Maximum number of places, service endpoints included.
pub const PLACES_MAX: usize = 4096;
/// Default of [`Config::flows_max`].
pub const FLOWS_DEFAULT: usize = 131_072;
/// The largest value of [`Config::flows_max`].
pub const FLOWS_MAX: usize = 16_777_216;
/// Default of [`Config::owner_timeout`].
pub const OWNER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
/// The smallest value of [`Config::owner_timeout`]: two heartbeats at an interval of 10 ms.
pub const OWNER_TIMEOUT_MIN: Duration = Duration::from_millis(20);
/// The largest value of [`Config::owner_timeout`].
pub const OWNER_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// Where the switch runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Between several interfaces: forwards frames from one port to others.
    #[default]
    Gateway,
    /// On a server's own interface, port 0: the *arbiter* of the flows whose original owner is this server, the *local*
    /// one (docs/switch.md, On a server's own interface).
    Host,
}

/// Number of a port of the switch, 0 to 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(u8);

impl PortId {
    /// The daemon's port: only control messages arrive on it, and no packet leaves through it except answers.
    pub const DAEMON: PortId = PortId(63);
    /// In host mode, the port of the local server: only control messages arrive on it and leave through it. Like the
    /// daemon's it has no interface. In gateway mode, a port like others.
    pub const LOCAL: PortId = PortId(62);
    /// In host mode, the port of the interface.
    pub const HOST: PortId = PortId(0);

    /// A port by its number; `None` if the number is above 63.
    pub const fn new(number: u8) -> Option<PortId> {
        if number <= PortId::DAEMON.0 { Some(PortId(number)) } else { None }
    }

    /// The number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u8);

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Services([u64; 4]);

impl Services {
    /// No service.
    pub const NONE: Services = Services([0; 4]);
    /// Every service.
    pub const ALL: Services = Services([u64::MAX; 4]);

    /// Adds a service.
    pub fn insert(&mut self, service: ServiceId) {
        self.0[usize::from(service.0 / 64)] |= 1 << (service.0 % 64);
    }

    /// Whether the set contains a service.
    pub fn contains(&self, service: ServiceId) -> bool {
        self.0[usize::from(service.0 / 64)] & 1 << (service.0 % 64) != 0
    }

    /// The set as 256 bits: service n is bit n mod 64 of word n / 64.
    pub fn words(&self) -> [u64; 4] {
        self.0
    }
}

impl FromIterator<ServiceId> for Services {
    fn from_iter<I: IntoIterator<Item = ServiceId>>(services: I) -> Services {
        let mut set = Services::NONE;
        services.into_iter().for_each(|service| set.insert(service));
        set
    }
}

/// An interface of the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number; not [`PortId::DAEMON`].
    pub id: PortId,
    /// The Ethernet address of the interface.
    pub mac: Mac,
    /// Whether servers are connected to the port, so that control messages may come from it.
    pub is_server: bool,
    /// The services whose flows the servers of this port may own. Separates tenants (Prism §6).
    pub may_own: Services,
}

/// A host on the switch's Ethernet segment. The switch learns no stations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// Its Ethernet address.
    pub mac: Mac,
    /// The port to which it is connected.
    pub port: PortId,
}

/// A route. Of several prefixes that contain a destination the longest applies. Prefixes of IPv4 apply to IPv4 packets
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address, whose bits after the prefix are 0.
    pub address: Address,
    /// Length in bits: at most 32 for IPv4, and 128 for IPv6.
    pub length: u8,
    /// Ethernet address of the next hop.
    pub next_hop: Mac,
    /// The port of the next hop.
    pub port: PortId,
}

/// A server that takes part in moves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Server {
    /// Its id; not [`ServerId::DAEMON`].
    pub id: ServerId,
    /// Authenticates control messages from and to the server.
    pub key: SwitchKey,
    /// The address to which the switch sends control messages.
    pub address: Address,
    /// The Ethernet address of the server.
    pub mac: Mac,
    /// The port to which the server is connected. In host mode [`PortId::HOST`] for all servers, the local one included.
    pub port: PortId,
}

/// An address and TCP port of a server: a service endpoint, or where the server imports connections of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address and port.
    pub at: Endpoint,
    /// The service endpoint, to which clients connect. Equal to `at` for the service endpoint itself.
    pub service: Endpoint,
    /// The service's number.
    pub number: ServiceId,
    /// The server. If the place is a service endpoint, the original owner of the service's flows.
    pub server: ServerId,
}

impl Place {
    /// Whether the place is a service endpoint.
    pub fn is_endpoint(&self) -> bool {
        self.at == self.service
    }
}

/// The configuration of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where the switch runs. A reload does not change it.
    pub mode: Mode,
    /// The interfaces. Packets from other interfaces are dropped. The daemon's port is not among them.
    pub ports: Vec<Port>,
    /// The hosts on the Ethernet segment.
    pub stations: Vec<Station>,
    /// The routes.
    pub prefixes: Vec<Prefix>,
    /// The addresses of the switch's host. Packets to them pass to its kernel, except control messages.
    pub own_addresses: Vec<Address>,
    /// The control endpoints, to which servers send control messages: at most one for each address family, each at one
    /// of `own_addresses`, with the same UDP port.
    pub control: Vec<Endpoint>,
    /// The key of the switch's daemon.
    pub daemon_key: SwitchKey,
    /// The servers.
    pub servers: Vec<Server>,
    /// The service endpoints, and where servers import connections.
    pub places: Vec<Place>,
    /// Time without a heartbeat after which a server is silent, and its flows return to their original owners. Measured
    /// by the clock of silence, which stands still in a pause of the switch.
    pub owner_timeout: Duration,
    /// Maximum number of flows with an entry. A reload does not change it.
    pub flows_max: usize,
    /// Maximum number of flows of single services, so that a tenant cannot fill the table for all. Services that are not
    /// listed have no bound of their own. Entries above a bound that a reload has lowered stay.
    pub service_flows_max: BTreeMap<ServiceId, usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_have_numbers_up_to_63() {
        assert_eq!(PortId::new(63), Some(PortId::DAEMON));
        assert_eq!(PortId::new(64), None);
    }

    #[test]
    fn services_are_bits_of_four_words() {
        let set: Services = [0, 63, 64, 255].into_iter().map(ServiceId).collect();
        assert_eq!(set.words(), [1 | 1 << 63, 1, 0, 1 << 63]);
        for number in 0..=255 {
            assert_eq!(set.contains(ServiceId(number)), [0, 63, 64, 255].contains(&number), "{number}");
            assert!(Services::ALL.contains(ServiceId(number)));
        }
    }
}
