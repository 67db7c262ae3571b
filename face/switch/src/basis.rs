//! Which entries the configuration permits. An entry that a reload no longer permits would break its connection without
//! an error: the packets would go to a server that may not answer, or whose answers are not rewritten.

use std::collections::{BTreeMap, BTreeSet};

use spillway_bpf::switch::{FlowEntry, Site};
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::Endpoint;

use crate::config::SwitchConfig;

/// Services, places, and the rights of servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Basis {
    /// Services by their endpoints.
    services: BTreeMap<Endpoint, u8>,
    /// Place, service endpoint, and id of the server.
    places: BTreeSet<(Endpoint, Endpoint, u8)>,
    /// Ethernet addresses of servers, and the services that they may own.
    servers: BTreeMap<u8, (Mac, Vec<u8>)>,
}

impl Basis {
    pub(crate) fn of(config: &SwitchConfig) -> Basis {
        let services = config.services.iter().flat_map(|service| {
            service.endpoints.iter().map(|endpoint| (endpoint.address.into(), service.number))
        });
        let places = config.servers.iter().flat_map(|server| {
            server.places.iter().map(|place| (place.address.into(), place.endpoint.into(), server.id))
        });
        let servers = config.servers.iter().map(|server| {
            let port = config.ports.iter().find(|port| port.number == server.port);
            let may_own = port.map(|port| port.may_own.clone()).unwrap_or_default();
            (server.id, (server.mac, may_own))
        });
        Basis { services: services.collect(), places: places.collect(), servers: servers.collect() }
    }

    /// Whether the configuration permits an entry: its service exists, and its owner may own it at its site.
    ///
    /// A target without permission ends the entry only where that leaves the connection at its owner; otherwise the move
    /// ends at its deadline. The original owner is not checked: if the flow returns to it, it is the owner.
    pub(crate) fn permits(&self, entry: &FlowEntry) -> bool {
        let Some(number) = self.services.get(&entry.service) else { return false };
        if !self.permits_site(&entry.owner, entry.service, *number) {
            return false;
        }
        let is_at_origin = entry.owner.server == entry.original.server && entry.owner.at == entry.service;
        !is_at_origin || entry.target.is_none_or(|target| self.permits_site(&target, entry.service, *number))
    }

    fn permits_site(&self, site: &Site, service: Endpoint, number: u8) -> bool {
        let Some((mac, may_own)) = self.servers.get(&site.server.0) else { return false };
        let is_place = || self.places.contains(&(site.at, service, site.server.0));
        *mac == site.mac && may_own.contains(&number) && (site.at == service || is_place())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{VALID, config, read};
    use crate::tables::memory::Memory;

    /// Whether the settings of a text permit an entry that server 2 owns at its place, changed by `change`.
    fn permits(text: &str, change: impl FnOnce(&mut FlowEntry)) -> bool {
        let tables = Memory::new(&spillway_auth::SwitchKey::from_bytes([1; 16]));
        tables.add("10.0.0.7:1", 2, change);
        Basis::of(&read(text)).permits(&tables.only())
    }

    #[test]
    fn an_entry_stays_while_its_owner_has_its_place_and_its_right() {
        assert!(permits(&VALID, |_| ()));
        let replaced = |from: &str, to: &str| {
            assert!(VALID.contains(from), "{from}");
            permits(&VALID.replace(from, to), |_| ())
        };
        assert!(replaced("name = \"b\"", "name = \"c\""), "names do not matter");
        assert!(!replaced("10.0.0.6:21211", "10.0.0.6:21212"), "the place has changed");
        assert!(!replaced("02:00:00:00:00:06", "02:00:00:00:00:16"), "another host");
        assert!(!replaced("name = \"b\"", "name = \"b\"\nid = 9"), "another server");
        assert!(!replaced("10.0.0.5:11211", "10.0.0.5:80"), "another service");
        // The file removes the right of the port, and therefore also the place, which it could not name.
        let mut without = config();
        without.ports[2].may_own.clear();
        let tables = Memory::new(&spillway_auth::SwitchKey::from_bytes([1; 16]));
        tables.add("10.0.0.7:1", 2, |_| ());
        assert!(!Basis::of(&without).permits(&tables.only()));
    }

    #[test]
    fn a_move_to_a_server_without_permission_ends_if_the_connection_has_not_moved_yet() {
        let text = VALID.replace("10.0.0.6:21211", "10.0.0.6:21212");
        let asked = |entry: &mut FlowEntry| {
            entry.target = Some(entry.owner);
            entry.owner = entry.original;
        };
        assert!(permits(&VALID, asked) && !permits(&text, asked));
        let back = |entry: &mut FlowEntry| {
            entry.target = Some(Site { mac: Mac([2; 6]), ..entry.original });
        };
        assert!(permits(&VALID, back), "the connection lives at server 2: the move ends at its deadline");
    }
}
