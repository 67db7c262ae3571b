//! Checks of a configuration, so that packets are decided without errors.

use alloc::collections::{BTreeMap, BTreeSet};

use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::ServerId;

use super::{
    Config, ConfigError, FLOWS_MAX, OWN_ADDRESSES_MAX, OWNER_TIMEOUT_MAX, OWNER_TIMEOUT_MIN, PLACES_MAX,
    PORTS_MAX, PREFIXES_MAX, Place, Port, PortId, Prefix, SENDERS_MAX, STATIONS_MAX, Server,
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
        if !(1..=FLOWS_MAX).contains(&self.flows_max) {
            return Err(ConfigError::FlowsMax(self.flows_max));
        }
        self.check_ports()?;
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

    fn check_ports(&self) -> Result<(), ConfigError> {
        // One number is the daemon's.
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
