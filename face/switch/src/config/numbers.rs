//! Numbers of ports, services and servers. The switch's tables have numbers, and the file has names: a reload or a
//! restart must not change the number of a name that stays.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use spillway_rules::config::PORTS_MAX;
use spillway_rules::{Mode, PortId};

use super::{Server, SwitchConfig};

/// Numbers of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// Numbers by name.
    pub(crate) by_name: BTreeMap<String, u8>,
    /// Numbers that the tables may use. A new name gets a number outside this set, if one is free.
    pub(crate) used: BTreeSet<u8>,
}

impl Numbers {
    /// Adds a name and its number, unless the number has a name already.
    pub(crate) fn add(&mut self, name: &str, number: u8) {
        self.used.insert(number);
        if !self.by_name.values().any(|one| *one == number) {
            self.by_name.entry(name.to_owned()).or_insert(number);
        }
    }
}

/// The numbers in the switch's tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownNumbers {
    /// Ports, by the names of their interfaces.
    pub(crate) ports: Numbers,
    pub(crate) services: Numbers,
    pub(crate) servers: Numbers,
    /// Ids of servers that are not configured any more, while entries still name them.
    pub(crate) retired: BTreeSet<u8>,
}

/// Gives each server without a fixed id the lowest free one, in order.
pub(super) fn assign_ids(servers: &mut [Server]) {
    let mut taken: BTreeSet<u8> =
        servers.iter().filter(|server| server.has_fixed_id).map(|server| server.id).collect();
    for server in servers.iter_mut().filter(|server| !server.has_fixed_id) {
        server.id = take_lowest(&mut taken, &BTreeSet::new(), IDS);
    }
}

/// Ids of servers; 0 is the daemon's.
const IDS: RangeInclusive<u8> = 1..=u8::MAX;
/// Numbers of ports; the highest one is the daemon's.
const PORTS: RangeInclusive<u8> = 0..=(PORTS_MAX - 2) as u8;

/// Takes the lowest number that is not taken, preferably one that is not used either. If all are taken, returns the
/// highest one: the checks of the configuration then report it.
fn take_lowest(taken: &mut BTreeSet<u8>, used: &BTreeSet<u8>, range: RangeInclusive<u8>) -> u8 {
    let is_free = |number: &u8| !taken.contains(number);
    let fresh = range.clone().find(|number| is_free(number) && !used.contains(number));
    let free = fresh.or_else(|| range.clone().find(is_free)).unwrap_or(*range.end());
    taken.insert(free);
    free
}

impl SwitchConfig {
    /// Gives ports, services and servers the numbers that they have in the switch's tables. New ones get free numbers.
    ///
    /// # Errors
    /// The file states another id for a server than the tables have, or the id of another server.
    pub(crate) fn keep_numbers(&mut self, known: &KnownNumbers) -> Result<(), String> {
        self.keep_ids(known)?;
        let of_port = |port: &super::Port| (port.interface.clone(), port.number);
        let ports = match self.mode {
            Mode::Gateway => renumbered(&known.ports, self.ports.iter().map(of_port), PORTS),
            // The only port has always this number, whatever its interface is.
            Mode::Host => self.ports.iter().map(|port| (port.number, PortId::HOST.number())).collect(),
        };
        let of_service = |service: &super::Service| (service.name.clone(), service.number);
        let services = renumbered(&known.services, self.services.iter().map(of_service), 0..=u8::MAX);
        for port in &mut self.ports {
            port.number = ports[&port.number];
            port.may_own.iter_mut().for_each(|number| *number = services[number]);
            port.may_own.sort_unstable();
        }
        self.stations.iter_mut().for_each(|station| station.port = ports[&station.port]);
        self.routes.iter_mut().for_each(|route| route.port = ports[&route.port]);
        self.services.iter_mut().for_each(|service| service.number = services[&service.number]);
        for server in &mut self.servers {
            server.port = ports[&server.port];
            server.places.iter_mut().for_each(|place| place.service = services[&place.service]);
        }
        Ok(())
    }

    fn keep_ids(&mut self, known: &KnownNumbers) -> Result<(), String> {
        let known_id = |name: &str| known.servers.by_name.get(name).copied();
        for Server { name, id, .. } in self.servers.iter().filter(|server| server.has_fixed_id) {
            if let Some(old) = known_id(name).filter(|old| old != id) {
                return Err(format!(
                    "server {name} has the id {old} in the switch's flows and cannot get the id {id}: set id = {old}, or \
                     give the server another name, as a new one with a key of its own"
                ));
            }
            let other = known.servers.by_name.iter().find(|(other, number)| *number == id && *other != name);
            if let Some((other, _)) = other {
                return Err(format!(
                    "the id {id} of server {name} is that of server {other} in the switch's flows: give {name} another id"
                ));
            }
            if known.retired.contains(id) && known_id(name).is_none() {
                return Err(format!(
                    "flows still name the id {id} of a server that was removed: try again in some seconds, when they have \
                     ended, or give {name} another id"
                ));
            }
        }
        let fixed = self.servers.iter().filter(|server| server.has_fixed_id).map(|server| server.id);
        let kept = self.servers.iter().filter_map(|server| known_id(&server.name));
        let mut taken: BTreeSet<u8> = fixed.chain(kept).collect();
        let used = known.servers.used.union(&known.retired).copied().collect();
        let mut ids = BTreeMap::new();
        for server in self.servers.iter().filter(|server| !server.has_fixed_id) {
            let id = known_id(&server.name).unwrap_or_else(|| take_lowest(&mut taken, &used, IDS));
            ids.insert(server.id, id);
        }
        let renumber = |id: &mut u8| *id = ids.get(id).copied().unwrap_or(*id);
        self.servers.iter_mut().for_each(|server| renumber(&mut server.id));
        let endpoints = self.services.iter_mut().flat_map(|service| &mut service.endpoints);
        endpoints.for_each(|endpoint| renumber(&mut endpoint.server));
        Ok(())
    }
}

/// Maps each number in `after` to the one to use: the known number of the same name, or a free one for a new name.
fn renumbered(
    known: &Numbers,
    after: impl Iterator<Item = (String, u8)>,
    range: RangeInclusive<u8>,
) -> BTreeMap<u8, u8> {
    let (kept, new): (Vec<_>, Vec<_>) = after.partition(|(name, _)| known.by_name.contains_key(name));
    let mut numbers: BTreeMap<u8, u8> =
        kept.iter().map(|(name, number)| (*number, known.by_name[name])).collect();
    let mut taken: BTreeSet<u8> = numbers.values().copied().collect();
    for (_, number) in new {
        numbers.insert(number, take_lowest(&mut taken, &known.used, range.clone()));
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::read;

    /// Servers as `name` or `name=id`, each on its own port; the first one's endpoint is the only service's.
    fn config(servers: &[&str]) -> SwitchConfig {
        let mut text =
            String::from("[switch]\ncontrol = [\"10.0.0.1:9511\"]\n[[port]]\ninterface = \"clients\"\n");
        for (index, server) in servers.iter().enumerate() {
            let (name, id) = server.split_once('=').map_or((*server, None), |(name, id)| (name, Some(id)));
            let id = id.map(|id| format!("id = {id}\n")).unwrap_or_default();
            text += &format!(
                "[[port]]\ninterface = \"to-{name}\"\nmay_own = [\"cache\"]\n[[server]]\nname = \"{name}\"\n{id}address = \
                 \"10.0.1.{index}\"\nmac = \"02:00:00:00:00:{index:02}\"\nport = \"to-{name}\"\nkey_file = \"k\"\n"
            );
        }
        let first = servers[0].split('=').next().unwrap();
        text += &format!(
            "[[service]]\nname = \"cache\"\nendpoints = [{{ address = \"10.0.0.5:80\", server = \"{first}\" }}]\n"
        );
        read(&text)
    }

    fn ids(config: &SwitchConfig) -> Vec<(&str, u8, &str)> {
        let servers = config.servers.iter();
        servers.map(|server| (server.name.as_str(), server.id, config.interface(server.port))).collect()
    }

    #[test]
    fn free_ids_are_assigned_in_order() {
        let config = config(&["a", "b=1", "c", "d=3"]);
        let expected = [("a", 2, "to-a"), ("b", 1, "to-b"), ("c", 4, "to-c"), ("d", 3, "to-d")];
        assert_eq!(ids(&config), expected);
        assert_eq!(config.services[0].endpoints[0].server, 2);
    }

    /// The numbers of a configuration in force.
    fn known(config: &SwitchConfig) -> KnownNumbers {
        crate::known::of_config(config)
    }

    #[test]
    fn a_reload_keeps_the_numbers_of_what_stays() {
        let before = config(&["a", "b", "c"]);
        let mut after = config(&["d", "c", "b"]);
        after.keep_numbers(&known(&before)).unwrap();
        // Numbers of what was removed are not used again: entries may name the id, and packets may be under way.
        assert_eq!(ids(&after), [("d", 4, "to-d"), ("c", 3, "to-c"), ("b", 2, "to-b")]);
        assert_eq!(after.services[0].endpoints[0].server, 4);
        let number = |config: &SwitchConfig, interface: &str| {
            config.ports.iter().find(|port| port.interface == interface).map(|port| port.number)
        };
        for interface in ["clients", "to-b", "to-c"] {
            assert_eq!(number(&after, interface), number(&before, interface), "{interface}");
        }
        assert_eq!(number(&after, "to-d"), Some(4));
    }

    #[test]
    fn an_id_that_flows_may_name_does_not_change_its_server() {
        let before = config(&["a", "b"]);
        let refusal = |servers: &[&str]| config(servers).keep_numbers(&known(&before)).unwrap_err();
        assert!(refusal(&["a=7", "b"]).contains("cannot get the id 7: set id = 1"));
        assert!(refusal(&["c=2", "a"]).contains("is that of server b"));
        assert!(config(&["a=1", "b=2", "c=9"]).keep_numbers(&known(&before)).is_ok());
        // A server was removed by an earlier reload, and entries still name it.
        let mut known = known(&before);
        known.retired.insert(3);
        let error = config(&["a", "b", "c=3"]).keep_numbers(&known).unwrap_err();
        assert!(error.contains("flows still name the id 3"), "{error}");
        let mut later = config(&["a", "b", "c"]);
        later.keep_numbers(&known).unwrap();
        assert_eq!(ids(&later)[2], ("c", 4, "to-c"));
    }

    #[test]
    fn numbers_in_use_are_taken_when_no_others_are_free() {
        let mut numbers = Numbers::default();
        (0..=62).for_each(|number| numbers.add(&format!("old{number}"), number));
        let after = [("old5".to_owned(), 0), ("new".to_owned(), 1)];
        let map = renumbered(&numbers, after.into_iter(), PORTS);
        assert_eq!(map, BTreeMap::from([(0, 5), (1, 0)]));
    }

    #[test]
    fn services_keep_their_numbers_by_name() {
        let mut known = Numbers::default();
        known.add("a", 0);
        known.add("b", 1);
        let pair = |name: &str, number| (name.to_owned(), number);
        let after = [pair("c", 0), pair("b", 1), pair("d", 2)];
        let numbers = renumbered(&known, after.into_iter(), 0..=u8::MAX);
        assert_eq!(numbers, BTreeMap::from([(0, 2), (1, 1), (2, 3)]));
    }
}
