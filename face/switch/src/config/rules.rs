//! Converts the settings to the configuration of `spillway_rules`.

use spillway_auth::SwitchKey;
use spillway_rules::config as rules;
use spillway_rules::{Address, Config, ConfigError, Endpoint, Mode, PortId, ServerId, ServiceId};
use spillway_wire::packet::ethernet::Mac;

use super::{Port, Server, SwitchConfig};

/// The Ethernet address of a port whose interface does not exist: no frame arrives or leaves at such a port.
const MAC_OF_MISSING: Mac = Mac([2, 0, 0, 0, 0, 0]);

impl SwitchConfig {
    /// The configuration of the rules. `daemon_key`: authenticates the daemon's own control messages.
    pub fn rules(&self, daemon_key: SwitchKey) -> Config {
        Config {
            mode: self.mode,
            ports: self.ports.iter().map(rules_port).collect(),
            stations: self.all_stations(),
            prefixes: self.prefixes(),
            own_addresses: self.addresses.iter().map(|address| Address::from(*address)).collect(),
            control: self.control.iter().map(|address| Endpoint::from(*address)).collect(),
            daemon_key,
            servers: self.servers.iter().filter_map(rules_server).collect(),
            places: self.places(),
            owner_timeout: self.owner_timeout,
            flows_max: self.flows_max,
            service_flows_max: self
                .services
                .iter()
                .filter_map(|service| Some((ServiceId(service.number), service.flows_max?)))
                .collect(),
        }
    }

    /// Checks whether the rules accept the settings: a second check, after those with line and column.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.rules(SwitchKey::from_bytes([0; 16])).check()
    }

    /// The stations of the file, and the servers; none in host mode, in which the switch forwards nothing to stations.
    fn all_stations(&self) -> Vec<rules::Station> {
        if self.mode == Mode::Host {
            return Vec::new();
        }
        let station = |mac, port| rules::Station { mac, port: port_id(port) };
        let is_listed = |server: &&Server| self.stations.iter().any(|station| station.mac == server.mac);
        let servers = self.servers.iter().filter(|server| !is_listed(server));
        let stations = self.stations.iter().map(|one| station(one.mac, one.port));
        stations.chain(servers.map(|one| station(one.mac, one.port))).collect()
    }

    fn prefixes(&self) -> Vec<rules::Prefix> {
        let prefix = |route: &super::Route| rules::Prefix {
            address: Address::from(route.network.address()),
            length: route.network.length(),
            next_hop: route.next_hop,
            port: port_id(route.port),
        };
        self.routes.iter().map(prefix).collect()
    }

    fn places(&self) -> Vec<rules::Place> {
        let endpoints = self.services.iter().flat_map(|service| {
            let number = ServiceId(service.number);
            service.endpoints.iter().map(move |endpoint| rules::Place {
                at: Endpoint::from(endpoint.address),
                service: Endpoint::from(endpoint.address),
                number,
                server: ServerId(endpoint.server),
            })
        });
        let places = self.servers.iter().flat_map(|server| {
            server.places.iter().map(|place| rules::Place {
                at: Endpoint::from(place.address),
                service: Endpoint::from(place.endpoint),
                number: ServiceId(place.service),
                server: ServerId(server.id),
            })
        });
        endpoints.chain(places).collect()
    }
}

fn rules_port(port: &Port) -> rules::Port {
    rules::Port {
        id: port_id(port.number),
        mac: if port.mac == Mac::ZERO { MAC_OF_MISSING } else { port.mac },
        is_server: !port.may_own.is_empty(),
        may_own: port.may_own.iter().map(|number| ServiceId(*number)).collect(),
        mtu: port.mtu,
    }
}

/// `None` for a server whose key was not read.
fn rules_server(server: &Server) -> Option<rules::Server> {
    Some(rules::Server {
        id: ServerId(server.id),
        key: server.key.as_ref()?.switch_key(),
        address: Address::from(server.address),
        mac: server.mac,
        port: port_id(server.port),
        encapsulation: server.encapsulation.map(|one| rules::Encapsulation { next_hop: one.next_hop }),
    })
}

/// A number above 63 becomes that of the daemon's port, which the checks refuse.
fn port_id(number: u8) -> PortId {
    PortId::new(number).unwrap_or(PortId::DAEMON)
}
