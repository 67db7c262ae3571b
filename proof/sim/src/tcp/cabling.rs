//! Which server is connected to which port of the switch, and the switch's configuration.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use spillway_auth::{Key, SwitchKey};
use spillway_handoff::Peer;
use spillway_rules::config::{Config, Place, Port, Server, Services, Station};
use spillway_rules::{Address, Endpoint, PortId, ServerId, ServiceId};
use spillway_wire::handoff::Run;
use spillway_wire::packet::ethernet::Mac;

use super::frames::{Ends, Family, address_of, mac_of, own_address};
use super::plan::{GATED_PORT, PORT};

/// The switch's own address, in the network of the hosts.
const SWITCH_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 255, 254);
const CONTROL_PORT: u16 = 7300;
/// Servers send their control messages from this port, and receive relayed ones on it.
const AGENT_PORT: u16 = 7301;
/// A server that imports at a place of its own does so at a listener's port plus this number.
const PLACE_OFFSET: u16 = 8000;

/// A server of a host: one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cable {
    pub(crate) host: usize,
    pub(crate) server: usize,
}

/// The servers of all hosts, by number of their port; a rogue host has the port after them.
#[derive(Clone, Debug)]
pub(crate) struct Cabling {
    cables: Vec<Cable>,
    servers_per_host: usize,
    rogue: Option<IpAddr>,
    family: Family,
    imports_at_places: bool,
}

impl Cabling {
    pub(crate) fn new(
        hosts: usize,
        servers_per_host: usize,
        has_rogue: bool,
        imports_at_places: bool,
        family: Family,
    ) -> Cabling {
        let cable = |port| Cable { host: port / servers_per_host, server: port % servers_per_host };
        let cables = (0..hosts * servers_per_host).map(cable).collect();
        let rogue = has_rogue.then(|| family.address_of(hosts));
        Cabling { cables, servers_per_host, rogue, imports_at_places, family }
    }

    /// Number of ports in use.
    pub(crate) fn ports(&self) -> usize {
        self.cables.len() + usize::from(self.rogue.is_some())
    }

    /// The server at a port; `None`: the rogue host.
    pub(crate) fn at(&self, port: usize) -> Option<Cable> {
        self.cables.get(port).copied()
    }

    pub(crate) fn port_of(&self, cable: Cable) -> usize {
        cable.host * self.servers_per_host + cable.server
    }

    pub(crate) fn rogue_port(&self) -> usize {
        self.cables.len()
    }

    /// A server's address and MAC. The first server of a host has the host's address, which is the services'.
    pub(crate) fn address(&self, cable: Cable) -> (IpAddr, Mac) {
        let ip = self.family.address(own_address(address_of(cable.host), cable.server));
        (ip, mac_of(ip))
    }

    /// The services of a host.
    pub(crate) fn services(&self, host: usize) -> [SocketAddr; 2] {
        [PORT, GATED_PORT].map(|port| SocketAddr::new(self.family.address_of(host), port))
    }

    /// Where a server has connections of its host's services, in the order of [`services`](Self::services).
    pub(crate) fn places(&self, cable: Cable) -> [SocketAddr; 2] {
        if cable.server == 0 || !self.imports_at_places {
            return self.services(cable.host);
        }
        let (ip, _) = self.address(cable);
        [PORT, GATED_PORT].map(|port| SocketAddr::new(ip, port + PLACE_OFFSET))
    }

    /// The service to which a place belongs, if it is not the service's own address.
    pub(crate) fn service_of(&self, cable: Cable, place: SocketAddr) -> Option<SocketAddr> {
        let all = self.places(cable).into_iter().zip(self.services(cable.host));
        all.filter(|(at, service)| at != service).find(|(at, _)| *at == place).map(|(_, service)| service)
    }

    pub(crate) fn server_id(&self, cable: Cable) -> ServerId {
        ServerId(self.port_of(cable) as u8 + 1) // fits: a few servers
    }

    pub(crate) fn cable_of(&self, id: ServerId) -> Option<Cable> {
        self.at(usize::from(id.0).checked_sub(1)?)
    }

    /// All servers of a host.
    pub(crate) fn peers(&self, host: usize) -> Vec<Peer> {
        let cables = self.cables.iter().filter(|cable| cable.host == host);
        cables.map(|cable| Peer { id: self.server_id(*cable), mac: self.address(*cable).1 }).collect()
    }

    pub(crate) fn key(&self, cable: Cable) -> SwitchKey {
        SwitchKey::from_bytes([self.server_id(cable).0; 16])
    }

    /// The key of all servers.
    pub(crate) fn peers_key(&self) -> Key {
        Key::from_secret([0x5e; 32])
    }

    /// The first run of a server.
    pub(crate) fn run(&self, cable: Cable) -> Run {
        Run::new(1_000 + self.port_of(cable) as u64).expect("above 0")
    }

    /// The switch's control endpoint.
    fn control(&self) -> SocketAddr {
        SocketAddr::new(self.family.address(SWITCH_IP), CONTROL_PORT)
    }

    /// Ends of a datagram from a server's agent to the switch.
    pub(crate) fn control_ends(&self, cable: Cable) -> Ends {
        let (ip, source_mac) = self.address(cable);
        Ends {
            source_mac,
            target_mac: port_mac(self.port_of(cable)),
            source: SocketAddr::new(ip, AGENT_PORT),
            target: self.control(),
        }
    }

    /// Ends of a datagram from one server to another one of its host.
    pub(crate) fn transfer_ends(&self, from: Cable, to: Cable) -> Ends {
        let ((source, source_mac), (target, target_mac)) = (self.address(from), self.address(to));
        let at = |ip| SocketAddr::new(ip, AGENT_PORT);
        Ends { source_mac, target_mac, source: at(source), target: at(target) }
    }

    /// The switch's configuration.
    pub(crate) fn config(&self, flows_max: usize, owner_timeout: Duration) -> Config {
        let is_in_rack = self.servers_per_host > 1;
        let cables = || self.cables.iter().copied();
        let mut ports: Vec<Port> = cables()
            .map(|cable| Port {
                id: port_id(self.port_of(cable)),
                mac: port_mac(self.port_of(cable)),
                is_server: is_in_rack,
                may_own: if is_in_rack {
                    [service_id(cable.host)].into_iter().collect()
                } else {
                    Services::NONE
                },
                mtu: 1500,
            })
            .collect();
        let mut stations: Vec<Station> = cables()
            .map(|cable| Station { mac: self.address(cable).1, port: port_id(self.port_of(cable)) })
            .collect();
        if let Some(ip) = self.rogue {
            let (id, mac) = (port_id(self.rogue_port()), port_mac(self.rogue_port()));
            ports.push(Port { id, mac, is_server: false, may_own: Services::NONE, mtu: 1500 });
            stations.push(Station { mac: mac_of(ip), port: id });
        }
        let in_rack = || cables().filter(|_| is_in_rack);
        let server = |cable: Cable| Server {
            id: self.server_id(cable),
            key: self.key(cable),
            address: Address::from(self.address(cable).0),
            mac: self.address(cable).1,
            port: port_id(self.port_of(cable)),
            encapsulation: None,
        };
        Config {
            mode: spillway_rules::Mode::Gateway,
            ports,
            stations,
            prefixes: Vec::new(),
            own_addresses: vec![Address::from(self.control().ip())],
            control: vec![Endpoint::from(self.control())],
            daemon_key: SwitchKey::from_bytes([0xda; 16]),
            servers: in_rack().map(server).collect(),
            places: in_rack().flat_map(|cable| self.configured_places(cable)).collect(),
            owner_timeout,
            flows_max,
            service_flows_max: Default::default(),
        }
    }

    fn configured_places(&self, cable: Cable) -> Vec<Place> {
        let all = self.places(cable).into_iter().zip(self.services(cable.host));
        let is_own = |(at, service): &(SocketAddr, SocketAddr)| cable.server == 0 || at != service;
        let place = |(at, service): (SocketAddr, SocketAddr)| Place {
            at: at.into(),
            service: service.into(),
            number: service_id(cable.host),
            server: self.server_id(cable),
        };
        all.filter(is_own).map(place).collect()
    }
}

fn service_id(host: usize) -> ServiceId {
    ServiceId(host as u8) // fits: a few hosts
}

/// The Ethernet address of a port's interface.
fn port_mac(port: usize) -> Mac {
    Mac([2, 1, 0, 0, 0, port as u8]) // fits: a few ports
}

/// # Panics
/// If there are more than 63 ports; a plan has fewer than 20.
pub(crate) fn port_id(port: usize) -> PortId {
    PortId::new(port as u8).expect("a plan has a few ports") // fits: a few ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configuration_is_valid_and_ports_and_servers_correspond() {
        for (servers, has_rogue, at_places, family) in [
            (1, true, false, Family::V4),
            (2, false, true, Family::V6),
            (3, true, true, Family::V4),
            (3, true, false, Family::V6),
        ] {
            let cabling = Cabling::new(4, servers, has_rogue, at_places, family);
            cabling.config(4, Duration::from_secs(1)).check().unwrap();
            assert_eq!(cabling.ports(), 4 * servers + usize::from(has_rogue));
            for port in 0..4 * servers {
                let cable = cabling.at(port).unwrap();
                assert_eq!(cabling.port_of(cable), port);
                assert_eq!(cabling.cable_of(cabling.server_id(cable)), Some(cable));
            }
            assert_eq!(cabling.at(4 * servers), None);
        }
    }

    #[test]
    fn only_targets_with_places_of_their_own_need_rewritten_addresses() {
        let (first, second) = (Cable { host: 1, server: 0 }, Cable { host: 1, server: 1 });
        let cabling = Cabling::new(2, 2, false, true, Family::V4);
        assert_eq!(cabling.places(first), cabling.services(1));
        let place = cabling.places(second)[1];
        assert_eq!(place, "10.0.1.2:8081".parse().unwrap());
        assert_eq!(cabling.service_of(second, place), Some(cabling.services(1)[1]));
        assert_eq!(cabling.service_of(first, cabling.services(1)[0]), None);
        assert_eq!(Cabling::new(2, 2, false, false, Family::V4).places(second), cabling.services(1));
    }
}
