//! Checks of a configuration, so that packets are decided without errors.

use alloc::collections::{BTreeMap, BTreeSet};

use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::ServerId;

use super::{
    Config, ConfigError, FLOWS_MAX, Mode, OWN_ADDRESSES_MAX, OWNER_TIMEOUT_MAX, OWNER_TIMEOUT_MIN,
    PLACES_MAX, PORTS_MAX, PREFIXES_MAX, Place, Port, PortId, Prefix, SENDERS_MAX, STATIONS_MAX, Server,
};
use crate::address::Address;

impl Config {
    /// Checks the configuration.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !(OWNER_TIMEOUT_MIN..=OWNER_TIMEOUT_MAX).contains(&self.owner_timeout) {
            return Err(ConfigError::OwnerTimeout);
        }
        for flows_max in core::iter::once(&self.flows_max).chain(self.service_flows_max.values()) {
            if !(1..=FLOWS_MAX).contains(flows_max) {
                return Err(ConfigError::FlowsMax(*flows_max));
            }
        }
        self.check_ports()?;
        self.check_mode()?;
        self.check_stations()?;
        self.check_prefixes()?;
        self.check_own_addresses()?;
        self.check_servers()?;
        self.check_places()
    }

    /// A port by its number.
    pub fn port(&self, id: PortId) -> Option<&Port> {
        self.ports.iter().find(|port| port.id == id)
    }

    /// A server by its id.
    pub fn server(&self, id: ServerId) -> Option<&Server> {
        self.servers.iter().find(|server| server.id == id)
    }

    /// In host mode, the server on whose interface the switch runs: the one with the interface's Ethernet address.
    pub fn local_server(&self) -> Option<&Server> {
        let port = self.port(PortId::HOST).filter(|_| self.mode == Mode::Host)?;
        self.servers.iter().find(|server| server.mac == port.mac)
    }

    fn check_mode(&self) -> Result<(), ConfigError> {
        if self.mode == Mode::Gateway {
            return Ok(());
        }
        match &self.ports[..] {
            [Port { id: PortId::HOST, is_server: true, .. }] => {}
            ports => return Err(ConfigError::HostPorts(ports.len())),
        }
        if !self.stations.is_empty() || !self.prefixes.is_empty() {
            return Err(ConfigError::HostForwarding(self.stations.len(), self.prefixes.len()));
        }
        Ok(())
    }

    fn check_ports(&self) -> Result<(), ConfigError> {
        // One of the numbers is that of the daemon's port.
        if self.ports.len() > PORTS_MAX - 1 {
            return Err(ConfigError::TooManyPorts(self.ports.len()));
        }
        let mut seen = BTreeSet::new();
        for port in &self.ports {
            check_unicast(port.mac)?;
            if port.id == PortId::DAEMON {
                return Err(ConfigError::DaemonPort);
            }
            if !seen.insert(port.id) {
                return Err(ConfigError::PortTwice(port.id));
            }
            if !port.is_server && port.may_own != super::Services::NONE {
                return Err(ConfigError::OwnerPortWithoutServers(port.id));
            }
        }
        Ok(())
    }

    fn check_stations(&self) -> Result<(), ConfigError> {
        if self.stations.len() > STATIONS_MAX {
            return Err(ConfigError::TooManyStations(self.stations.len()));
        }
        let mut seen = BTreeSet::new();
        for station in &self.stations {
            check_unicast(station.mac)?;
            if !seen.insert(station.mac) {
                return Err(ConfigError::StationTwice(station.mac));
            }
            if self.port(station.port).is_none() {
                return Err(ConfigError::StationPort(station.mac, station.port));
            }
        }
        Ok(())
    }

    fn check_prefixes(&self) -> Result<(), ConfigError> {
        if self.prefixes.len() > PREFIXES_MAX {
            return Err(ConfigError::TooManyPrefixes(self.prefixes.len()));
        }
        let mut seen = BTreeSet::new();
        for prefix in &self.prefixes {
            let &Prefix { address, length, next_hop, port } = prefix;
            check_unicast(next_hop)?;
            if !prefix.is_valid() {
                return Err(ConfigError::Prefix(address, length));
            }
            if !seen.insert((address, length)) {
                return Err(ConfigError::PrefixTwice(address, length));
            }
            if self.port(port).is_none() {
                return Err(ConfigError::PrefixPort(address, length, port));
            }
        }
        Ok(())
    }

    fn check_own_addresses(&self) -> Result<(), ConfigError> {
        if self.own_addresses.len() > OWN_ADDRESSES_MAX {
            return Err(ConfigError::TooManyOwnAddresses(self.own_addresses.len()));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.own_addresses.iter().find(|address| !seen.insert(**address)) {
            return Err(ConfigError::OwnAddressTwice(*twice));
        }
        let families: BTreeSet<bool> = self.control.iter().map(|at| at.ip().is_ipv4()).collect();
        if self.control.is_empty() || families.len() != self.control.len() {
            return Err(ConfigError::ControlEndpoints(self.control.len()));
        }
        for endpoint in &self.control {
            if !seen.contains(&Address::from(*endpoint)) {
                return Err(ConfigError::ControlNotOwn(*endpoint));
            }
            if endpoint.port() == 0 || endpoint.port() != self.control[0].port() {
                return Err(ConfigError::ControlPort(*endpoint));
            }
        }
        Ok(())
    }

    fn check_servers(&self) -> Result<(), ConfigError> {
        if self.servers.len() > SENDERS_MAX - 1 {
            return Err(ConfigError::TooManyServers(self.servers.len()));
        }
        let stations: BTreeMap<Mac, PortId> =
            self.stations.iter().map(|station| (station.mac, station.port)).collect();
        let mut ids = BTreeSet::new();
        let mut macs = BTreeMap::new();
        for (index, server) in self.servers.iter().enumerate() {
            let &Server { id, address, mac, port, .. } = server;
            check_unicast(mac)?;
            if id == ServerId::DAEMON {
                return Err(ConfigError::DaemonServer);
            }
            if !ids.insert(id) {
                return Err(ConfigError::ServerTwice(id));
            }
            if let Some(other) = macs.insert(mac, id) {
                return Err(ConfigError::ServerMacTwice(other, id));
            }
            if server.key == self.daemon_key {
                return Err(ConfigError::KeyTwice(ServerId::DAEMON, id));
            }
            if let Some(other) = self.servers[..index].iter().find(|other| other.key == server.key) {
                return Err(ConfigError::KeyTwice(other.id, id));
            }
            if !self.port(port).is_some_and(|port| port.is_server) {
                return Err(ConfigError::ServerPort(id, port));
            }
            if let Some(station) = stations.get(&mac).filter(|station| **station != port) {
                return Err(ConfigError::ServerStation(id, *station));
            }
            if !self.control.iter().any(|control| control.ip().is_ipv4() == address.is_ipv4()) {
                return Err(ConfigError::ServerFamily(id, address));
            }
        }
        Ok(())
    }

    fn check_places(&self) -> Result<(), ConfigError> {
        if self.places.len() > PLACES_MAX {
            return Err(ConfigError::TooManyPlaces(self.places.len()));
        }
        let mut seen = BTreeMap::new();
        for place in &self.places {
            if seen.insert(place.at, place).is_some() {
                return Err(ConfigError::PlaceTwice(place.at));
            }
        }
        for &Place { at, service, number, server } in &self.places {
            if at.port() == 0 {
                return Err(ConfigError::PlacePort(at));
            }
            let Some(endpoint) = seen.get(&service).filter(|endpoint| endpoint.is_endpoint()) else {
                return Err(ConfigError::PlaceService(at, service));
            };
            if endpoint.number != number || endpoint.at.ip().is_ipv4() != at.ip().is_ipv4() {
                return Err(ConfigError::PlaceDiffers(at, service));
            }
            let port = self.server(server).and_then(|server| self.port(server.port));
            let Some(port) = port else {
                return Err(ConfigError::PlaceServer(at, server));
            };
            if !port.may_own.contains(number) {
                return Err(ConfigError::PlaceNotAllowed(at, number, port.id));
            }
        }
        Ok(())
    }
}

impl Prefix {
    /// Whether the prefix contains the destination of a packet of this family.
    pub(crate) fn applies_to(&self, is_ipv4: bool, target: Address) -> bool {
        self.address.is_ipv4() == is_ipv4 && (bits(self.address) ^ bits(target)) & self.mask() == 0
    }

    fn is_valid(&self) -> bool {
        let length_max = if self.address.is_ipv4() { 32 } else { 128 };
        self.length <= length_max && bits(self.address) & !self.mask() == 0
    }

    /// The bits of 16-byte addresses that the prefix compares.
    fn mask(&self) -> u128 {
        let length = u32::from(self.length) + if self.address.is_ipv4() { 96 } else { 0 };
        u128::MAX.checked_shl(128_u32.saturating_sub(length)).unwrap_or(0)
    }
}

fn bits(address: Address) -> u128 {
    u128::from_be_bytes(address.0)
}

fn check_unicast(mac: Mac) -> Result<(), ConfigError> {
    if mac.is_unicast() { Ok(()) } else { Err(ConfigError::MacNotUnicast(mac)) }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use core::time::Duration;

    use spillway_wire::switch::Endpoint;

    use super::*;
    use crate::config::{ServiceId, Services, Station};
    use crate::test_config::{
        OTHER_SERVICE, SERVICE, address, config, control, control_v6, endpoint, host_config, key, mac,
        place_of, port, server_mac, service,
    };

    /// The fault of the test configuration after a change.
    #[track_caller]
    fn refused(change: impl FnOnce(&mut Config)) -> ConfigError {
        let mut config = config();
        change(&mut config);
        let error = config.check().unwrap_err();
        assert!(!error.to_string().is_empty());
        error
    }

    #[track_caller]
    fn accepted(change: impl FnOnce(&mut Config)) {
        let mut config = config();
        change(&mut config);
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn limits_of_time_and_flows() {
        for (timeout, flows_max) in [(20, 1), (3_600_000, FLOWS_MAX)] {
            accepted(|config| {
                (config.owner_timeout, config.flows_max) = (Duration::from_millis(timeout), flows_max);
            });
        }
        for timeout in [0, 19, 3_600_001] {
            let error = refused(|config| config.owner_timeout = Duration::from_millis(timeout));
            assert_eq!(error, ConfigError::OwnerTimeout);
        }
        for flows_max in [0, FLOWS_MAX + 1] {
            assert_eq!(refused(|config| config.flows_max = flows_max), ConfigError::FlowsMax(flows_max));
        }
    }

    #[test]
    fn ports() {
        let refused_port = |change: fn(&mut Port)| refused(|config| change(&mut config.ports[3]));
        assert_eq!(refused_port(|port| port.id = PortId::DAEMON), ConfigError::DaemonPort);
        assert_eq!(refused_port(|other| other.id = port(2)), ConfigError::PortTwice(port(2)));
        assert_eq!(refused_port(|port| port.mac = Mac::ZERO), ConfigError::MacNotUnicast(Mac::ZERO));
        assert_eq!(
            refused(|config| config.ports[5].may_own = Services::ALL),
            ConfigError::OwnerPortWithoutServers(port(5))
        );
        let many = |count: u8| {
            move |config: &mut Config| {
                let more = (6..count).map(|number| Port { id: port(number), ..config.ports[0].clone() });
                let more: alloc::vec::Vec<_> = more.collect();
                config.ports.extend(more);
            }
        };
        accepted(many(63));
        let twice = config().ports[0].clone();
        let error = refused(|config| {
            many(63)(config);
            config.ports.push(twice);
        });
        assert_eq!(error, ConfigError::TooManyPorts(64));
    }

    #[test]
    fn a_host_has_one_port_with_servers_and_forwards_nothing() {
        let refused = |change: fn(&mut Config)| {
            let mut config = host_config();
            change(&mut config);
            config.check().unwrap_err()
        };
        assert_eq!(host_config().check(), Ok(()));
        assert_eq!(refused(|config| config.ports[0].id = port(1)), ConfigError::HostPorts(1));
        assert_eq!(refused(|config| config.ports.clear()), ConfigError::HostPorts(0));
        let second = |config: &mut Config| {
            let port = Port { id: port(1), ..config.ports[0].clone() };
            config.ports.push(port);
        };
        assert_eq!(refused(second), ConfigError::HostPorts(2));
        let without_servers = |config: &mut Config| {
            config.ports[0].is_server = false;
            config.ports[0].may_own = Services::NONE;
        };
        assert_eq!(refused(without_servers), ConfigError::HostPorts(1));
        let station = |config: &mut Config| config.stations.push(Station { mac: mac(77), port: port(0) });
        assert_eq!(refused(station), ConfigError::HostForwarding(1, 0));
        let route = |config: &mut Config| config.prefixes = crate::test_config::config().prefixes;
        assert_eq!(refused(route), ConfigError::HostForwarding(0, 4));
        assert_eq!(
            refused(|config| config.servers[1].port = port(1)),
            ConfigError::ServerPort(ServerId(2), port(1))
        );
        assert!(!refused(second).to_string().is_empty() && !refused(station).to_string().is_empty());
    }

    #[test]
    fn the_local_server_has_the_address_of_the_interface() {
        let mut host = host_config();
        assert_eq!(host.local_server().map(|server| server.id), Some(ServerId(1)));
        host.ports[0].mac = mac(99);
        assert_eq!((host.check(), host.local_server()), (Ok(()), None), "no server runs here");
        let mut gateway = config();
        gateway.ports[0].mac = server_mac(1);
        assert_eq!(gateway.local_server(), None);
    }

    #[test]
    fn stations() {
        let station = |mac, number| Station { mac, port: port(number) };
        let refused = |station| refused(|config| config.stations.push(station));
        assert_eq!(refused(station(mac(12), 0)), ConfigError::StationTwice(mac(12)));
        assert_eq!(refused(station(mac(77), 6)), ConfigError::StationPort(mac(77), port(6)));
        assert_eq!(refused(station(Mac::BROADCAST, 0)), ConfigError::MacNotUnicast(Mac::BROADCAST));
    }

    #[test]
    fn prefixes() {
        let prefix = |at, length| Prefix { address: address(at), length, next_hop: mac(1), port: port(0) };
        for (at, length) in [("0.0.0.0", 0), ("::", 0), ("10.0.0.1", 31), ("10.0.0.0", 33), ("fd00::", 129)] {
            let refused_length = length > 32 && at.contains('.') || length > 128 || at == "10.0.0.1";
            let add = |config: &mut Config| config.prefixes.push(prefix(at, length));
            if refused_length {
                assert_eq!(refused(add), ConfigError::Prefix(address(at), length));
            } else {
                accepted(add);
            }
        }
        let add = |prefix| refused(|config| config.prefixes.push(prefix));
        assert_eq!(add(prefix("192.0.2.0", 24)), ConfigError::PrefixTwice(address("192.0.2.0"), 24));
        let elsewhere = Prefix { port: port(9), ..prefix("10.9.0.0", 16) };
        assert_eq!(add(elsewhere), ConfigError::PrefixPort(address("10.9.0.0"), 16, port(9)));
        let group = Prefix { next_hop: Mac::BROADCAST, ..prefix("10.9.0.0", 16) };
        assert_eq!(add(group), ConfigError::MacNotUnicast(Mac::BROADCAST));
    }

    #[test]
    fn own_addresses_and_control_endpoints() {
        let twice = refused(|config| config.own_addresses.push(address("10.0.0.254")));
        assert_eq!(twice, ConfigError::OwnAddressTwice(address("10.0.0.254")));
        let many = refused(|config| {
            config.own_addresses = (0..65_u8).map(|last| [10, 1, 0, last].into()).map(core_address).collect();
        });
        assert_eq!(many, ConfigError::TooManyOwnAddresses(65));
        let refused_control = |endpoints: &[Endpoint]| refused(|config| config.control = endpoints.to_vec());
        assert_eq!(refused_control(&[]), ConfigError::ControlEndpoints(0));
        assert_eq!(refused_control(&[control(), control()]), ConfigError::ControlEndpoints(2));
        let foreign = endpoint("10.0.0.253:7300");
        assert_eq!(refused_control(&[foreign]), ConfigError::ControlNotOwn(foreign));
        let other_port = endpoint("[fd00::fe]:7301");
        assert_eq!(refused_control(&[control(), other_port]), ConfigError::ControlPort(other_port));
        let no_port = endpoint("10.0.0.254:0");
        assert_eq!(refused_control(&[no_port]), ConfigError::ControlPort(no_port));
        assert_eq!(
            refused_control(&[control_v6()]),
            ConfigError::ServerFamily(ServerId(1), crate::test_config::server_address(1))
        );
        accepted(|config| config.control = alloc::vec![control()]);
    }

    fn core_address(ip: core::net::Ipv4Addr) -> Address {
        ip.into()
    }

    #[test]
    fn servers() {
        let refused = |change: fn(&mut Server)| refused(|config| change(&mut config.servers[2]));
        assert_eq!(refused(|server| server.id = ServerId::DAEMON), ConfigError::DaemonServer);
        assert_eq!(refused(|server| server.id = ServerId(1)), ConfigError::ServerTwice(ServerId(1)));
        assert_eq!(
            refused(|server| server.mac = server_mac(1)),
            ConfigError::ServerMacTwice(ServerId(1), ServerId(3))
        );
        assert_eq!(refused(|server| server.mac = Mac::ZERO), ConfigError::MacNotUnicast(Mac::ZERO));
        assert_eq!(refused(|server| server.key = key(2)), ConfigError::KeyTwice(ServerId(2), ServerId(3)));
        assert_eq!(refused(|server| server.key = key(0)), ConfigError::KeyTwice(ServerId(0), ServerId(3)));
        assert_eq!(refused(|server| server.port = port(0)), ConfigError::ServerPort(ServerId(3), port(0)));
        assert_eq!(refused(|server| server.port = port(9)), ConfigError::ServerPort(ServerId(3), port(9)));
        assert_eq!(refused(|server| server.port = port(4)), ConfigError::ServerStation(ServerId(3), port(3)));
        let many = self::refused(|config| {
            let server = config.servers[0].clone();
            config.servers.resize(256, server);
        });
        assert_eq!(many, ConfigError::TooManyServers(256));
        accepted(|config| config.stations.retain(|station| station.mac != server_mac(3)));
    }

    #[test]
    fn places() {
        let place = Place { at: place_of(2), service: service(), number: SERVICE, server: ServerId(2) };
        let other = endpoint("10.0.1.2:8001");
        let refused = |place: Place| refused(|config| config.places.push(place));
        assert_eq!(refused(place), ConfigError::PlaceTwice(place_of(2)));
        let at = Place { at: other, ..place };
        accepted(|config| config.places.push(at));
        let no_port = endpoint("10.0.1.2:0");
        assert_eq!(refused(Place { at: no_port, ..place }), ConfigError::PlacePort(no_port));
        assert_eq!(
            refused(Place { server: ServerId(9), ..at }),
            ConfigError::PlaceServer(other, ServerId(9))
        );
        let unknown = endpoint("10.0.0.1:81");
        assert_eq!(refused(Place { service: unknown, ..at }), ConfigError::PlaceService(other, unknown));
        let no_endpoint = place_of(3);
        assert_eq!(
            refused(Place { service: no_endpoint, ..at }),
            ConfigError::PlaceService(other, no_endpoint)
        );
        assert_eq!(
            refused(Place { number: OTHER_SERVICE, ..at }),
            ConfigError::PlaceDiffers(other, service())
        );
        let other_family = endpoint("[fd00::9]:80");
        assert_eq!(
            refused(Place { at: other_family, ..at }),
            ConfigError::PlaceDiffers(other_family, service())
        );
        // A service that no port may own.
        let alone = endpoint("10.0.0.2:80");
        let number = ServiceId(99);
        assert_eq!(
            refused(Place { at: alone, service: alone, number, server: ServerId(2) }),
            ConfigError::PlaceNotAllowed(alone, number, port(2))
        );
    }

    #[test]
    fn faults_name_what_is_wrong() {
        let error = refused(|config| config.servers[2].port = port(0));
        assert_eq!(error.to_string(), "server 3 is on port 0, which is not configured as a port of servers");
        let error = refused(|config| config.prefixes[0].length = 23 + 10);
        assert_eq!(
            error.to_string(),
            "192.0.2.0/33 is not a prefix: too long, or bits after the prefix are not 0"
        );
    }
}
