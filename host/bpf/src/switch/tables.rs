//! Fills the maps with a configuration.

use std::collections::BTreeMap;

use libbpf_rs::{MapCore, MapFlags, Object};
use spillway_rules::config::{Config, PORTS_MAX, SENDERS_MAX, Server};
use spillway_rules::{Address, Mode, PortId, ServerId};
use spillway_wire::packet::ethernet::Mac;

use super::layout::{self, ONLY, Settings};
use crate::BpfError;
use crate::map::Map;

/// Keys with their values.
type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// The place of the servers in [`Tables::maps`].
const SERVERS: usize = 1;

/// Why a configuration was not written.
#[derive(Debug)]
pub(super) enum ConfigureError {
    /// The system has failed, and the tables are as before.
    Unchanged(BpfError),
    /// The system has failed, and a part of the change stays.
    Mixed {
        /// Why the change failed.
        cause: BpfError,
        /// Why the tables could not be restored.
        restoring: BpfError,
    },
}

/// The maps with the configuration, and `shared` and `owners`, which a start or a reload changes, too.
#[derive(Debug)]
pub(super) struct Tables {
    settings: Map,
    shared: Map,
    ports: Map,
    stations: Map,
    own_addresses: Map,
    prefixes: Map,
    places: Map,
    homes: Map,
    servers: Map,
    owners: Map,
}

impl Tables {
    pub(super) fn of(object: &Object) -> Result<Tables, BpfError> {
        Ok(Tables {
            settings: Map::of(object, "settings")?,
            shared: Map::of(object, "shared")?,
            ports: Map::of(object, "ports")?,
            stations: Map::of(object, "stations")?,
            own_addresses: Map::of(object, "own_addresses")?,
            prefixes: Map::of(object, "prefixes")?,
            places: Map::of(object, "places")?,
            homes: Map::of(object, "homes")?,
            servers: Map::of(object, "servers")?,
            owners: Map::of(object, "owners")?,
        })
    }

    /// Sets the counter of generations of a new switch to its epoch.
    pub(super) fn start(&self, epoch: u64) -> Result<(), BpfError> {
        self.shared.set(&ONLY, &layout::shared(epoch))
    }

    /// Writes a configuration that was checked. Values that are right already are not written. Packets that arrive
    /// meanwhile see a part of the change.
    ///
    /// # Errors
    /// The system has failed. The tables are as before, unless restoring them failed, too; only servers that the
    /// configuration removes, or gives another key, have lost their terms.
    pub(super) fn configure(&self, config: &Config, epoch: u64) -> Result<(), ConfigureError> {
        let before = self.read().map_err(ConfigureError::Unchanged)?;
        let renewed = self.renew_senders(&before[SERVERS], &servers(config));
        let written = renewed.and_then(|()| self.write(&before, &self.wanted(config, epoch)));
        let Err(cause) = written else { return Ok(()) };
        match self.read().and_then(|present| self.write(&present, &before)) {
            Ok(()) => Err(ConfigureError::Unchanged(cause)),
            Err(restoring) => Err(ConfigureError::Mixed { cause, restoring }),
        }
    }

    /// The maps with the configuration, in the order in which they are written.
    fn maps(&self) -> [&Map; 8] {
        [
            &self.ports,
            &self.servers,
            &self.stations,
            &self.own_addresses,
            &self.prefixes,
            &self.places,
            &self.homes,
            &self.settings,
        ]
    }

    /// What [`maps`](Self::maps) contain.
    fn read(&self) -> Result<[Entries; 8], BpfError> {
        let mut all = std::array::from_fn(|_| Entries::new());
        for (map, entries) in self.maps().into_iter().zip(&mut all) {
            for key in map.handle().keys() {
                let value = map.value(&key, MapFlags::ANY)?;
                entries.extend(value.map(|value| (key, value)));
            }
        }
        Ok(all)
    }

    /// What [`maps`](Self::maps) contain for a configuration.
    fn wanted(&self, config: &Config, epoch: u64) -> [Entries; 8] {
        let control = config.control.first();
        let settings = Settings {
            control_port: control.map_or(0, |endpoint| endpoint.port()),
            control_address: control.map_or(Address::ZERO, |endpoint| Address(endpoint.address())),
            server_last: config.servers.iter().map(|server| server.id.0).max().unwrap_or(0),
            epoch,
            owner_timeout_ns: u64::try_from(config.owner_timeout.as_nanos()).unwrap_or(u64::MAX),
            is_host: config.mode == Mode::Host,
            local: config.local_server().map_or(0, |server| server.id.0),
        };
        [
            ports(config),
            servers(config),
            stations(config),
            own_addresses(config),
            prefixes(config),
            places(config),
            homes(config),
            Entries::from([(ONLY.to_vec(), settings.value())]),
        ]
    }

    fn write(&self, before: &[Entries; 8], after: &[Entries; 8]) -> Result<(), BpfError> {
        let mut maps = self.maps().into_iter().zip(before.iter().zip(after));
        maps.try_for_each(|(map, (before, after))| replace(map, before, after))
    }

    /// Forgets the terms and the sequence numbers of servers that are not configured any more, or have another key: with
    /// it the sequence numbers begin anew. Meanwhile no message of such a server is accepted.
    fn renew_senders(&self, before: &Entries, after: &Entries) -> Result<(), BpfError> {
        const ZERO: [u8; 64] = [0; 64];
        for (id, server) in after.iter().filter(|(id, _)| **id != ONLY) {
            let old = before.get(id);
            if old.is_some_and(|old| layout::is_same_sender(old, server)) {
                continue;
            }
            if old.is_some_and(|old| *old != layout::no_server()) {
                self.servers.set(id, &layout::no_server())?;
            }
            // The kernel leaves the lock out of a value that is read.
            if self.owners.value(id, MapFlags::LOCK)?.is_some_and(|owner| owner != ZERO) {
                self.owners.set_locked(id, &ZERO)?;
            }
        }
        Ok(())
    }
}

/// Makes a map contain exactly the entries in `after`. `before`: those that it contains now. An entry that stays is not
/// written, because the kernel could reuse its element for another entry while the program reads it.
fn replace(map: &Map, before: &Entries, after: &Entries) -> Result<(), BpfError> {
    // Old entries are removed first, because the map may have no room for old and new ones together.
    before.keys().filter(|key| !after.contains_key(*key)).try_for_each(|key| map.remove(key))?;
    let mut changed = after.iter().filter(|(key, value)| before.get(*key) != Some(value));
    changed.try_for_each(|(key, value)| map.set(key, value))
}

fn ports(config: &Config) -> Entries {
    let ports = (0..PORTS_MAX as u8).filter_map(PortId::new);
    let value = |id| match (id, config.mode) {
        (PortId::DAEMON, _) => layout::port(None, true),
        // The local server's port has the rights of the interface's port.
        (PortId::LOCAL, Mode::Host) => layout::port(config.port(PortId::HOST), true),
        _ => layout::port(config.port(id), false),
    };
    ports.map(|id| (u32::from(id.number()).to_ne_bytes().to_vec(), value(id))).collect()
}

fn servers(config: &Config) -> Entries {
    let daemon = Server {
        id: ServerId::DAEMON,
        key: config.daemon_key.clone(),
        address: Address::ZERO,
        mac: Mac::ZERO,
        port: PortId::DAEMON,
        encapsulation: None,
    };
    let daemon = layout::server(&daemon, PortId::DAEMON);
    let local = config.local_server().map(|server| server.id);
    let value = |id| match config.server(ServerId(id)) {
        Some(server) => {
            let port = if Some(server.id) == local { PortId::LOCAL } else { server.port };
            layout::server(server, port)
        }
        None => layout::no_server(),
    };
    let ids = 1..=(SENDERS_MAX - 1) as u8;
    let servers = ids.map(|id| (u32::from(id).to_ne_bytes().to_vec(), value(id)));
    [(ONLY.to_vec(), daemon)].into_iter().chain(servers).collect()
}

fn stations(config: &Config) -> Entries {
    let mut ports: BTreeMap<Mac, (u8, u8)> = BTreeMap::new();
    for station in &config.stations {
        ports.insert(station.mac, (station.port.number(), 0));
    }
    for server in &config.servers {
        ports.entry(server.mac).or_insert((layout::PORT_NONE, 0)).1 = server.id.0;
    }
    ports
        .into_iter()
        .map(|(mac, (port, server))| (layout::station_key(mac), layout::station(port, server)))
        .collect()
}

fn own_addresses(config: &Config) -> Entries {
    let is_control =
        |address: &Address| config.control.iter().any(|endpoint| endpoint.address() == address.0);
    config
        .own_addresses
        .iter()
        .map(|address| (address.0.to_vec(), u32::from(is_control(address)).to_ne_bytes().to_vec()))
        .collect()
}

fn prefixes(config: &Config) -> Entries {
    config
        .prefixes
        .iter()
        .map(|prefix| {
            let value = layout::next_hop(prefix.next_hop, prefix.port.number());
            (layout::prefix(prefix.address, prefix.length), value)
        })
        .collect()
}

fn places(config: &Config) -> Entries {
    config
        .places
        .iter()
        .map(|place| {
            let may_own = config.ports.iter().filter(|port| port.may_own.contains(place.number));
            let ports = may_own.fold(0, |ports, port| ports | bits(config, port.id));
            let flows_max = config.service_flows_max.get(&place.number);
            let flows_max = flows_max.map_or(u64::MAX, |flows_max| *flows_max as u64);
            (layout::endpoint(place.at), layout::place(place, ports, flows_max))
        })
        .collect()
}

/// The bit of a port, in host mode with that of the local server's port.
fn bits(config: &Config, port: PortId) -> u64 {
    let local = if config.mode == Mode::Host { 1 << PortId::LOCAL.number() } else { 0 };
    1 << port.number() | local
}

fn homes(config: &Config) -> Entries {
    let homes = config.homes();
    homes.into_iter().map(|(address, ports)| (address.0.to_vec(), ports.to_ne_bytes().to_vec())).collect()
}
