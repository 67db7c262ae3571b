//! Fills the maps with a configuration.

use std::collections::BTreeMap;

use libbpf_rs::{MapCore, MapFlags, Object};
use spillway_rules::config::{Config, PORTS_MAX, SENDERS_MAX};
use spillway_rules::{Address, PortId, ServerId};
use spillway_wire::packet::ethernet::Mac;

use super::layout::{self, ONLY, Settings};
use crate::BpfError;
use crate::map::Map;

/// Keys with their values.
type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

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

    /// Writes a configuration that was checked. Packets that arrive meanwhile see a part of the change.
    pub(super) fn configure(&self, config: &Config, epoch: u64) -> Result<(), BpfError> {
        for index in 0..PORTS_MAX as u8 {
            let id = PortId::new(index).expect("below PORTS_MAX");
            let value = layout::port(config.port(id), id == PortId::DAEMON);
            self.ports.set(&u32::from(index).to_ne_bytes(), &value)?;
        }
        self.write_servers(config)?;
        replace(&self.stations, stations(config))?;
        replace(&self.own_addresses, own_addresses(config))?;
        replace(&self.prefixes, prefixes(config))?;
        replace(&self.places, places(config))?;
        replace(&self.homes, homes(config))?;
        let settings = Settings {
            control_port: config.control.first().map_or(0, |endpoint| endpoint.port()),
            server_last: config.servers.iter().map(|server| server.id.0).max().unwrap_or(0),
            epoch,
            owner_timeout_ns: u64::try_from(config.owner_timeout.as_nanos()).unwrap_or(u64::MAX),
        };
        self.settings.set(&ONLY, &settings.value())
    }

    fn write_servers(&self, config: &Config) -> Result<(), BpfError> {
        let daemon =
            layout::server(config.daemon_key.as_bytes(), Address::ZERO, Mac::ZERO, PortId::DAEMON.number());
        self.servers.set(&ONLY, &daemon)?;
        for id in 1..SENDERS_MAX {
            let key = (id as u32).to_ne_bytes();
            match config.server(ServerId(id as u8)) {
                Some(server) => {
                    let port = server.port.number();
                    let value = layout::server(server.key.as_bytes(), server.address, server.mac, port);
                    self.servers.set(&key, &value)?;
                }
                None => {
                    self.servers.set(&key, &layout::no_server())?;
                    self.end_term(&key)?;
                }
            }
        }
        Ok(())
    }

    /// Ends the term of an owner that is not configured any more, so that its flows return.
    fn end_term(&self, key: &[u8]) -> Result<(), BpfError> {
        /// Where `struct owner` has the term.
        const TERM: std::ops::Range<usize> = 8..16;
        let Some(mut owner) = self.owners.value(key, MapFlags::LOCK)? else { return Ok(()) };
        if owner[TERM] == [0; 8] {
            return Ok(());
        }
        owner[TERM].fill(0);
        self.owners.set_locked(key, &owner)
    }
}

/// Makes a map contain exactly these entries.
fn replace(map: &Map, entries: Entries) -> Result<(), BpfError> {
    let stale: Vec<_> = map.handle().keys().filter(|key| !entries.contains_key(key)).collect();
    // The old entries first, because the map may have no room for both.
    for key in stale {
        map.remove(&key)?;
    }
    for (key, value) in entries {
        map.set(&key, &value)?;
    }
    Ok(())
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
            let ports = may_own.fold(0, |ports, port| ports | 1 << port.id.number());
            let flows_max = config.service_flows_max.get(&place.number);
            let flows_max = flows_max.map_or(u64::MAX, |flows_max| *flows_max as u64);
            (layout::endpoint(place.at), layout::place(place, ports, flows_max))
        })
        .collect()
}

fn homes(config: &Config) -> Entries {
    let homes = config.homes();
    homes.into_iter().map(|(address, ports)| (address.0.to_vec(), ports.to_ne_bytes().to_vec())).collect()
}
