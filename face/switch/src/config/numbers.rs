//! Numbers of ports, services and servers. They are in the switch's tables, so a reload must not change them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Server, SwitchConfig};

/// Gives each server without a fixed id the lowest free one, in order.
pub(super) fn assign_ids(servers: &mut [Server]) {
    let mut taken: BTreeSet<u8> =
        servers.iter().filter(|server| server.has_fixed_id).map(|server| server.id).collect();
    for server in servers.iter_mut().filter(|server| !server.has_fixed_id) {
        server.id = lowest_free(&mut taken, 1);
    }
}

/// Takes the lowest number from `first` on; 255 if all are taken, which the checks of the configuration then report.
fn lowest_free(taken: &mut BTreeSet<u8>, first: u8) -> u8 {
    let free = (first..=u8::MAX).find(|number| !taken.contains(number)).unwrap_or(u8::MAX);
    taken.insert(free);
    free
}

impl SwitchConfig {
    /// Keeps the numbers that ports, services and servers of the same names have in `before`, so that the flows in the
    /// switch's tables stay valid. New ones get free numbers.
    ///
    /// # Errors
    /// The file states another id for a server that runs, or a running server's id for another one.
    pub fn keep_numbers(&mut self, before: &SwitchConfig) -> Result<(), String> {
        self.keep_ids(before)?;
        let of_port = |port: &super::Port| (port.interface.clone(), port.number);
        let ports = renumbered(before.ports.iter().map(of_port), self.ports.iter().map(of_port));
        let of_service = |service: &super::Service| (service.name.clone(), service.number);
        let services =
            renumbered(before.services.iter().map(of_service), self.services.iter().map(of_service));
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

    fn keep_ids(&mut self, before: &SwitchConfig) -> Result<(), String> {
        let old_id = |name: &str| before.servers.iter().find(|old| old.name == name).map(|old| old.id);
        for server in self.servers.iter().filter(|server| server.has_fixed_id) {
            let Server { name, id, .. } = server;
            if let Some(old) = old_id(name).filter(|old| old != id) {
                return Err(format!(
                    "server {name} has the id {old} in the switch's flows and cannot get the id {id}: set id = {old}, or \
                     give the server another name, as a new one"
                ));
            }
            if let Some(old) = before.server(*id).filter(|old| old.name != *name) {
                return Err(format!(
                    "the id {id} of server {name} is that of server {} in the switch's flows: give {name} another id",
                    old.name
                ));
            }
        }
        // This reload does not reuse the ids of servers that it removes: flows may still name them.
        let fixed = self.servers.iter().filter(|server| server.has_fixed_id).map(|server| server.id);
        let mut taken: BTreeSet<u8> = fixed.chain(before.servers.iter().map(|old| old.id)).collect();
        let mut ids = BTreeMap::new();
        for server in self.servers.iter().filter(|server| !server.has_fixed_id) {
            let id = old_id(&server.name).unwrap_or_else(|| lowest_free(&mut taken, 1));
            ids.insert(server.id, id);
        }
        let renumber = |id: &mut u8| *id = ids.get(id).copied().unwrap_or(*id);
        self.servers.iter_mut().for_each(|server| renumber(&mut server.id));
        let endpoints = self.services.iter_mut().flat_map(|service| &mut service.endpoints);
        endpoints.for_each(|endpoint| renumber(&mut endpoint.server));
        Ok(())
    }
}

/// Maps each number in `after` to the one to use: the number that the same name has in `before`, or the lowest free one
/// for a new name.
fn renumbered(
    before: impl Iterator<Item = (String, u8)>,
    after: impl Iterator<Item = (String, u8)>,
) -> BTreeMap<u8, u8> {
    let before: BTreeMap<String, u8> = before.collect();
    let (kept, new): (Vec<_>, Vec<_>) = after.partition(|(name, _)| before.contains_key(name));
    let mut numbers: BTreeMap<u8, u8> = kept.iter().map(|(name, number)| (*number, before[name])).collect();
    let mut taken: BTreeSet<u8> = numbers.values().copied().collect();
    for (_, number) in new {
        numbers.insert(number, lowest_free(&mut taken, 0));
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

    #[test]
    fn a_reload_keeps_the_numbers_of_what_stays() {
        let before = config(&["a", "b", "c"]);
        let mut after = config(&["d", "c", "b"]);
        after.keep_numbers(&before).unwrap();
        // The id of `a`, which was removed, is not used again, but its port is.
        assert_eq!(ids(&after), [("d", 4, "to-d"), ("c", 3, "to-c"), ("b", 2, "to-b")]);
        assert_eq!(after.services[0].endpoints[0].server, 4);
        let number = |config: &SwitchConfig, interface: &str| {
            config.ports.iter().find(|port| port.interface == interface).map(|port| port.number)
        };
        for interface in ["clients", "to-b", "to-c"] {
            assert_eq!(number(&after, interface), number(&before, interface), "{interface}");
        }
        assert_eq!(number(&after, "to-d"), number(&before, "to-a"));
    }

    #[test]
    fn an_id_that_flows_may_name_does_not_change_its_server() {
        let before = config(&["a", "b"]);
        let refusal = |servers: &[&str]| config(servers).keep_numbers(&before).unwrap_err();
        assert!(refusal(&["a=7", "b"]).contains("cannot get the id 7: set id = 1"));
        assert!(refusal(&["c=2", "a"]).contains("is that of server b"));
        assert!(config(&["a=1", "b=2", "c=9"]).keep_numbers(&before).is_ok());
    }

    #[test]
    fn services_keep_their_numbers_by_name() {
        let pair = |name: &str, number| (name.to_owned(), number);
        let before = [pair("a", 0), pair("b", 1)];
        let after = [pair("c", 0), pair("b", 1), pair("d", 2)];
        let numbers = renumbered(before.into_iter(), after.into_iter());
        assert_eq!(numbers, BTreeMap::from([(0, 0), (1, 1), (2, 2)]));
    }
}
