//! The configuration in a form in which the handling of a packet finds each setting by one lookup.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use foldhash::quality::FixedState;
use hashbrown::{HashMap, HashSet};
use spillway_auth::SwitchKey;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{Endpoint, ServerId};

use crate::address::Address;
use crate::config::{Config, Mode, PORTS_MAX, Place, Port, PortId, Prefix, SENDERS_MAX, ServiceId, Station};
use crate::tunnel::Tunnel;

/// Hash function of maps whose keys come from packets. The seed differs from switch to switch, so that a peer cannot
/// choose keys that collide in all of them.
pub(crate) type Keyed = FixedState;

/// A checked configuration.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    mode: Mode,
    ports: Vec<Option<Port>>,
    stations: HashMap<Mac, PortId, Keyed>,
    /// The longest first.
    prefixes: Vec<Prefix>,
    own_addresses: HashSet<Address, Keyed>,
    control: Vec<Endpoint>,
    senders: Vec<Option<Sender>>,
    /// In host mode, the server on whose interface the switch runs.
    local: Option<ServerId>,
    servers_by_mac: HashMap<Mac, ServerId, Keyed>,
    places: HashMap<Endpoint, Place, Keyed>,
    /// See [`Config::homes`].
    homes: HashMap<Address, u64, Keyed>,
    service_flows_max: BTreeMap<ServiceId, usize>,
}

/// A sender of control messages: a server or the daemon.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    pub(crate) key: SwitchKey,
    pub(crate) address: Address,
    pub(crate) mac: Mac,
    pub(crate) port: PortId,
    /// Ethernet destination of frames to the server: a router's, or the server's own.
    pub(crate) next_hop: Mac,
    /// Whether packets of moved flows go through a tunnel.
    pub(crate) is_encapsulated: bool,
}

/// How packets of moved flows reach a server, in host mode.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// Over the Ethernet segment of the interface.
    Segment,
    /// Through a tunnel.
    Tunnel(Tunnel),
}

impl Tables {
    /// `config` must have passed its check.
    pub(crate) fn new(config: Config, hash: &Keyed) -> Tables {
        let homes = config.homes();
        let local = config.local_server().map(|server| server.id);
        let Config {
            mode,
            ports,
            stations,
            mut prefixes,
            own_addresses,
            control,
            daemon_key,
            servers,
            places,
            service_flows_max,
            ..
        } = config;
        prefixes.sort_by_key(|prefix| (core::cmp::Reverse(prefix.length), prefix.address));
        let mut tables = Tables {
            mode,
            ports: alloc::vec![None; PORTS_MAX],
            stations: HashMap::with_hasher(hash.clone()),
            prefixes,
            own_addresses: HashSet::with_hasher(hash.clone()),
            control,
            senders: alloc::vec![None; SENDERS_MAX],
            local,
            servers_by_mac: HashMap::with_hasher(hash.clone()),
            places: HashMap::with_hasher(hash.clone()),
            homes: HashMap::with_hasher(hash.clone()),
            service_flows_max,
        };
        tables.homes.extend(homes);
        for port in ports {
            // The local server has the rights of the interface's port.
            if mode == Mode::Host {
                tables.ports[usize::from(PortId::LOCAL.number())] =
                    Some(Port { id: PortId::LOCAL, ..port.clone() });
            }
            let index = usize::from(port.id.number());
            tables.ports[index] = Some(port);
        }
        tables.stations.extend(stations.into_iter().map(|Station { mac, port }| (mac, port)));
        tables.own_addresses.extend(own_addresses);
        tables.places.extend(places.into_iter().map(|place| (place.at, place)));
        tables.senders[0] = Some(Sender {
            key: daemon_key,
            address: Address::ZERO,
            mac: Mac::ZERO,
            port: PortId::DAEMON,
            next_hop: Mac::ZERO,
            is_encapsulated: false,
        });
        for server in servers {
            tables.servers_by_mac.insert(server.mac, server.id);
            let (key, address, mac) = (server.key, server.address, server.mac);
            let port = if Some(server.id) == local { PortId::LOCAL } else { server.port };
            let next_hop = server.encapsulation.map_or(mac, |encapsulation| encapsulation.next_hop);
            let is_encapsulated = server.encapsulation.is_some();
            tables.senders[usize::from(server.id.0)] =
                Some(Sender { key, address, mac, port, next_hop, is_encapsulated });
        }
        tables
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn is_host(&self) -> bool {
        self.mode == Mode::Host
    }

    /// Whether a port has no interface: the daemon's, and in host mode that of the local server.
    pub(crate) fn is_internal(&self, port: PortId) -> bool {
        port == PortId::DAEMON || self.is_local(port)
    }

    /// Whether a port is that of the local server of a host.
    pub(crate) fn is_local(&self, port: PortId) -> bool {
        self.is_host() && port == PortId::LOCAL
    }

    /// Whether the switch is on the interface of this server.
    pub(crate) fn is_local_server(&self, server: ServerId) -> bool {
        self.sender(server).is_some_and(|server| self.is_local(server.port))
    }

    /// In host mode, the server on whose interface the switch runs, if it is configured.
    pub(crate) fn local_server(&self) -> Option<(ServerId, &Sender)> {
        self.local.and_then(|local| Some((local, self.sender(local)?)))
    }

    /// In host mode, how packets of moved flows reach another server. `None` if a tunnel has no beginning: the local server is
    /// not configured.
    pub(crate) fn way_to(&self, server: ServerId) -> Option<Way> {
        match self.sender(server) {
            Some(Sender { is_encapsulated: true, address, next_hop, .. }) => {
                let (_, local) = self.local_server()?;
                Some(Way::Tunnel(Tunnel { source: local.address, target: *address, next_hop: *next_hop }))
            }
            _ => Some(Way::Segment),
        }
    }

    /// Whether the entries of a service's flows are here: in host mode, if its original owner is the local server.
    pub(crate) fn is_arbitrated(&self, service: &Place) -> bool {
        !self.is_host() || self.is_local_server(service.server)
    }

    /// A configured port, or that of the local server; not the daemon's.
    pub(crate) fn port(&self, id: PortId) -> Option<&Port> {
        self.ports[usize::from(id.number())].as_ref()
    }

    pub(crate) fn is_server_port(&self, id: PortId) -> bool {
        self.port(id).is_some_and(|port| port.is_server)
    }

    pub(crate) fn station(&self, mac: Mac) -> Option<PortId> {
        self.stations.get(&mac).copied()
    }

    /// The longest prefix that contains a destination of this family.
    pub(crate) fn route(&self, is_ipv4: bool, target: Address) -> Option<&Prefix> {
        self.prefixes.iter().find(|prefix| prefix.applies_to(is_ipv4, target))
    }

    pub(crate) fn is_own(&self, address: Address) -> bool {
        self.own_addresses.contains(&address)
    }

    /// Whether control messages are sent to this endpoint.
    pub(crate) fn is_control(&self, endpoint: Endpoint) -> bool {
        self.control.contains(&endpoint)
    }

    pub(crate) fn sender(&self, id: ServerId) -> Option<&Sender> {
        self.senders[usize::from(id.0)].as_ref()
    }

    /// The sender that the field *sender* of a message names.
    pub(crate) fn sender_of(&self, number: u32) -> Option<(ServerId, &Sender)> {
        let id = ServerId::try_from(number).ok()?;
        self.sender(id).map(|sender| (id, sender))
    }

    pub(crate) fn place(&self, at: Endpoint) -> Option<&Place> {
        self.places.get(&at)
    }

    /// Whether the servers of a port may announce an address by ARP or neighbour discovery. Every port's servers may
    /// announce an address that the configuration does not contain.
    pub(crate) fn may_announce(&self, port: PortId, address: Address) -> bool {
        self.homes.get(&address).is_none_or(|ports| ports & 1 << port.number() != 0)
    }

    /// Maximum number of flows of a service with an entry.
    pub(crate) fn flows_max(&self, service: ServiceId) -> usize {
        self.service_flows_max.get(&service).copied().unwrap_or(usize::MAX)
    }

    /// A place that is a service endpoint.
    pub(crate) fn service(&self, at: Endpoint) -> Option<&Place> {
        self.place(at).filter(|place| place.is_endpoint())
    }

    /// Whether the servers of a port may own flows of a service.
    pub(crate) fn may_own(&self, port: PortId, service: ServiceId) -> bool {
        self.port(port).is_some_and(|port| port.may_own.contains(service))
    }

    /// Whether a server may own flows of a service.
    pub(crate) fn server_may_own(&self, server: ServerId, service: ServiceId) -> bool {
        self.sender(server).is_some_and(|server| self.may_own(server.port, service))
    }

    /// The server with this Ethernet address, if it may import the service's connections at the endpoint `at`: `at`
    /// must be a place of that server for the service, or the service endpoint itself (the server then takes over the
    /// address).
    pub(crate) fn server_of_site(&self, at: Endpoint, mac: Mac, service: Endpoint) -> Option<ServerId> {
        let server = *self.servers_by_mac.get(&mac)?;
        let is_place = || {
            let place = self.place(at);
            place.is_some_and(|place| place.server == server && place.service == service)
        };
        let number = self.service(service)?.number;
        ((at == service || is_place()) && self.server_may_own(server, number)).then_some(server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_config::{self, mac, server_mac};

    fn tables() -> Tables {
        Tables::new(test_config::config(), &Keyed::with_seed(1))
    }

    fn address(text: &str) -> Address {
        text.parse::<core::net::IpAddr>().unwrap().into()
    }

    #[test]
    fn the_longest_prefix_of_the_family_applies() {
        let mut config = test_config::config();
        let prefix = |at: &str, length, hop| Prefix {
            address: address(at),
            length,
            next_hop: mac(hop),
            port: PortId::new(0).unwrap(),
        };
        config.prefixes = alloc::vec![
            prefix("0.0.0.0", 0, 1),
            prefix("192.0.2.0", 24, 2),
            prefix("192.0.2.128", 25, 3),
            prefix("192.0.2.200", 32, 4),
            prefix("::", 0, 5),
            prefix("fd00::", 16, 6),
        ];
        config.check().unwrap();
        let tables = Tables::new(config, &Keyed::with_seed(1));
        for (target, hop) in [
            ("198.51.100.1", 1),
            ("192.0.2.127", 2),
            ("192.0.2.199", 3),
            ("192.0.2.200", 4),
            ("2001:db8::1", 5),
            ("fd00:1::1", 6),
        ] {
            let target = address(target);
            assert_eq!(tables.route(target.is_ipv4(), target).unwrap().next_hop, mac(hop), "{target}");
        }
        // An IPv6 packet to a mapped address takes IPv6's default route.
        assert_eq!(tables.route(false, address("192.0.2.200")).unwrap().next_hop, mac(5));
    }

    #[test]
    fn sites_are_a_servers_own_places_or_the_service_endpoint() {
        let tables = tables();
        let service = test_config::service();
        let place = test_config::place_of(2);
        assert_eq!(tables.server_of_site(place, server_mac(2), service), Some(ServerId(2)));
        assert_eq!(tables.server_of_site(service, server_mac(2), service), Some(ServerId(2)));
        assert_eq!(tables.server_of_site(place, server_mac(3), service), None);
        assert_eq!(tables.server_of_site(place, mac(99), service), None);
        assert_eq!(tables.server_of_site(place, server_mac(2), test_config::service_v6()), None);
    }
}
