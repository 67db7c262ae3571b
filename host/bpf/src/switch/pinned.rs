//! The numbers in the pins of a switch, for a daemon that starts: its file has names, and no numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use spillway_rules::config::{Place, Server};
use spillway_rules::{PortId, ServerId, ServiceId};

use super::attachment::Attachment;
use super::layout::{self, LAYOUT_VERSION};
use super::pins::{PinError, Pins};
use super::{FlowEntry, entries};
use crate::BpfError;

/// The numbers that pinned tables and links have now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// Indexes of the interfaces to which the program is attached, by port.
    pub ports: BTreeMap<PortId, u32>,
    /// The service endpoints, and where servers import connections.
    pub places: Vec<Place>,
    /// The servers.
    pub servers: Vec<Server>,
    /// The services of the servers' last heartbeats.
    pub heartbeat_services: BTreeSet<ServiceId>,
    /// The servers that entries of flows name.
    pub named_servers: BTreeSet<ServerId>,
}

impl Pinned {
    /// Reads the pins in a directory. `None`: it has no complete pins. Changes nothing.
    ///
    /// # Errors
    /// The pins have another layout; the switch forwards in another network namespace; the system has failed.
    pub fn read(directory: &Path) -> Result<Option<Pinned>, PinError> {
        let pins = Pins::existing(directory);
        match pins.version_and_epoch()? {
            Some((LAYOUT_VERSION, _)) => {}
            None | Some((0, _)) => return Ok(None),
            Some((found, _)) => return Err(PinError::Layout { directory: directory.to_owned(), found }),
        }
        let mut pinned = Pinned::default();
        for (port, attachment) in pins.attachments()? {
            if let Attachment::Here { index, .. } = attachment {
                pinned.ports.insert(port, index);
            }
        }
        // Without one of the maps the switch was being removed: the next start makes a new map in its place.
        if let Some(places) = pins.open_map("places")? {
            pinned.places =
                elements(&places)?.iter().filter_map(|(at, place)| layout::read_place(at, place)).collect();
        }
        if let Some(servers) = pins.open_map("servers")? {
            pinned.servers =
                elements(&servers)?.iter().filter_map(|(id, one)| layout::read_server(id, one)).collect();
        }
        if let Some(owners) = pins.open_map("owners")? {
            let owners = elements(&owners)?;
            pinned.heartbeat_services = owners.values().filter_map(|owner| entries::service(owner)).collect();
        }
        if let Some(flows) = pins.open_map("flows")? {
            pinned.named_servers = entries::flows_of(&flows)?.flat_map(|entry| entry.servers()).collect();
        }
        Ok(Some(pinned))
    }
}

impl FlowEntry {
    /// The servers that the entry names: owner, original owner, and the target of a move.
    pub fn servers(&self) -> impl Iterator<Item = ServerId> + use<> {
        let target = self.target.map(|site| site.server);
        [self.owner.server, self.original.server].into_iter().chain(target)
    }
}

/// The keys of a map with their values.
fn elements(map: &MapHandle) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, BpfError> {
    let mut elements = BTreeMap::new();
    for key in map.keys() {
        let value = map.lookup(&key, MapFlags::ANY).map_err(BpfError::of("cannot read a pinned map"))?;
        elements.extend(value.map(|value| (key, value)));
    }
    Ok(elements)
}
