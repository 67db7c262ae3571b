//! The numbers in the switch's tables, by the names of the file.

use std::collections::{BTreeMap, BTreeSet};

use spillway_bpf::switch::Pinned;
use spillway_rules::{Endpoint, ServerId};

use crate::config::{KnownNumbers, Server, SwitchConfig};

/// The numbers of a configuration in force.
pub(crate) fn of_config(config: &SwitchConfig) -> KnownNumbers {
    let mut known = KnownNumbers::default();
    config.ports.iter().for_each(|port| known.ports.add(&port.interface, port.number));
    config.services.iter().for_each(|service| known.services.add(&service.name, service.number));
    config.servers.iter().for_each(|server| known.servers.add(&server.name, server.id));
    known
}

/// The numbers at a reload. `attached`: ports by the indexes of the interfaces that they have. `index_of`: the index of an
/// interface, if it exists. `named`: the servers that entries name.
///
/// A port is recognized by the index of its interface before the name: an administrator may have renamed the interface.
pub(crate) fn at_reload(
    before: &SwitchConfig,
    after: &SwitchConfig,
    attached: &BTreeMap<u32, u8>,
    index_of: impl Fn(&str) -> Option<u32>,
    named: &BTreeSet<ServerId>,
) -> KnownNumbers {
    let mut known = of_config(before);
    known.ports.by_name = ports(after, attached, index_of);
    for port in before.ports.iter().filter(|port| !attached.values().any(|number| *number == port.number)) {
        known.ports.add(&port.interface, port.number);
    }
    known.ports.used.extend(attached.values());
    known.retired = named.iter().map(|server| server.0).filter(|id| before.server(*id).is_none()).collect();
    known
}

/// The numbers in the pins at a start. A service is recognized by its endpoints, a server by its key or its address.
pub(crate) fn at_start(
    pinned: &Pinned,
    config: &SwitchConfig,
    index_of: impl Fn(&str) -> Option<u32>,
) -> KnownNumbers {
    let mut known = KnownNumbers::default();
    let attached = pinned.ports.iter().map(|(port, index)| (*index, port.number())).collect();
    known.ports.by_name = ports(config, &attached, index_of);
    known.ports.used = attached.into_values().collect();

    let endpoints = pinned.places.iter().filter(|place| place.is_endpoint());
    let services: BTreeMap<Endpoint, u8> = endpoints.map(|place| (place.at, place.number.0)).collect();
    for service in &config.services {
        let mut numbers = service.endpoints.iter().filter_map(|one| services.get(&one.address.into()));
        numbers.next().into_iter().for_each(|number| known.services.add(&service.name, *number));
    }
    known.services.used.extend(services.values());
    known.services.used.extend(pinned.heartbeat_services.iter().map(|service| service.0));

    let mut rest: Vec<&Server> = Vec::new();
    for server in &config.servers {
        let has_key = |one: &&spillway_rules::config::Server| {
            server.key.as_ref().is_some_and(|key| key.switch_key() == one.key)
        };
        match pinned.servers.iter().find(has_key) {
            Some(one) => known.servers.add(&server.name, one.id.0),
            None => rest.push(server),
        }
    }
    // The key of such a server was replaced.
    for server in rest {
        let address = server.address.into();
        let found = pinned.servers.iter().find(|one| one.address == address);
        found.into_iter().for_each(|one| known.servers.add(&server.name, one.id.0));
    }
    known.servers.used.extend(pinned.servers.iter().map(|one| one.id.0));
    // Entries that name another server under an id do not prevent the start: the first turn ends them.
    known.servers.used.extend(pinned.named_servers.iter().map(|server| server.0));
    known
}

/// The numbers of the ports whose interfaces have the program.
fn ports(
    config: &SwitchConfig,
    attached: &BTreeMap<u32, u8>,
    index_of: impl Fn(&str) -> Option<u32>,
) -> BTreeMap<String, u8> {
    let number = |name: &str| attached.get(&index_of(name)?).copied();
    let ports = config.ports.iter();
    ports.filter_map(|port| Some((port.interface.clone(), number(&port.interface)?))).collect()
}

#[cfg(test)]
mod tests {
    use spillway_auth::{Key, SwitchKey};
    use spillway_rules::PortId;
    use spillway_rules::config::{Place, ServiceId};

    use super::*;
    use crate::config::tests::{VALID, config, read};

    /// Indexes of `eth0` and so on: 10 and so on.
    fn index_of(interface: &str) -> Option<u32> {
        Some(10 + interface.strip_prefix("eth")?.parse::<u32>().ok()?)
    }

    /// [`VALID`] with keys.
    fn with_keys(text: &str) -> SwitchConfig {
        let mut config = read(text);
        for server in &mut config.servers {
            server.key = Some(Key::from_secret([server.name.as_bytes()[0]; 32]));
        }
        config
    }

    /// What the pins of a switch with these settings contain.
    fn pinned(config: &SwitchConfig) -> Pinned {
        let rules = config.rules(SwitchKey::from_bytes([9; 16]));
        let ports = config.ports.iter();
        let ports = ports.map(|port| (PortId::new(port.number).unwrap(), index_of(&port.interface).unwrap()));
        Pinned { ports: ports.collect(), places: rules.places, servers: rules.servers, ..Pinned::default() }
    }

    /// Names with numbers.
    fn numbers(config: &SwitchConfig) -> [Vec<(&str, u8)>; 3] {
        [
            config.ports.iter().map(|port| (port.interface.as_str(), port.number)).collect(),
            config.services.iter().map(|service| (service.name.as_str(), service.number)).collect(),
            config.servers.iter().map(|server| (server.name.as_str(), server.id)).collect(),
        ]
    }

    /// The file has a new port, service and server in front of the others.
    const CHANGED: &str = r#"[[port]]
interface = "eth9"
may_own = ["new"]
[[service]]
name = "new"
endpoints = [{ address = "10.0.0.9:80", server = "c" }]
[[server]]
name = "c"
address = "10.0.0.9"
mac = "02:00:00:00:00:19"
port = "eth9"
key_file = "c.key"
"#;

    fn changed() -> SwitchConfig {
        let (head, rest) = VALID.split_at(VALID.find("[[port]]").unwrap());
        with_keys(&format!("{head}{CHANGED}{rest}"))
    }

    #[test]
    fn a_start_takes_the_numbers_from_the_pins() {
        let pinned = pinned(&with_keys(&VALID));
        let mut config = changed();
        config.keep_numbers(&at_start(&pinned, &config, index_of)).unwrap();
        let [ports, services, servers] = numbers(&config);
        assert_eq!(ports, [("eth9", 3), ("eth0", 0), ("eth1", 1), ("eth2", 2)]);
        assert_eq!(services, [("new", 1), ("cache", 0)]);
        assert_eq!(servers, [("c", 3), ("a", 1), ("b", 2)]);
        assert!(config.rules(SwitchKey::from_bytes([9; 16])).check().is_ok());
    }

    #[test]
    fn a_server_with_a_new_key_is_recognized_by_its_address() {
        let pinned = pinned(&with_keys(&VALID));
        let mut config = changed();
        config.servers[2].key = Some(Key::from_secret([99; 32]));
        config.keep_numbers(&at_start(&pinned, &config, index_of)).unwrap();
        assert_eq!(numbers(&config)[2], [("c", 3), ("a", 1), ("b", 2)]);
    }

    #[test]
    fn a_file_that_contradicts_the_pins_is_refused() {
        let pinned = pinned(&with_keys(&VALID));
        let mut config = with_keys(&VALID.replace("name = \"a\"", "name = \"a\"\nid = 2"));
        let error = config.keep_numbers(&at_start(&pinned, &config, index_of)).unwrap_err();
        assert!(error.contains("server a has the id 1 in the switch's flows"), "{error}");
    }

    #[test]
    fn new_names_avoid_numbers_that_tables_may_use() {
        let mut pinned = pinned(&with_keys(&VALID));
        pinned.heartbeat_services.insert(ServiceId(1));
        pinned.named_servers.insert(ServerId(3));
        pinned.ports.insert(PortId::new(3).unwrap(), 77);
        let mut config = changed();
        config.keep_numbers(&at_start(&pinned, &config, index_of)).unwrap();
        let [ports, services, servers] = numbers(&config);
        assert_eq!((ports[0], services[0], servers[0]), (("eth9", 4), ("new", 2), ("c", 4)));
    }

    #[test]
    fn two_services_do_not_get_one_number() {
        let mut pinned = pinned(&with_keys(&VALID));
        let at = "10.0.0.9:80".parse::<std::net::SocketAddr>().unwrap().into();
        pinned.places.push(Place { at, service: at, number: ServiceId(0), server: ServerId(1) });
        let mut config = changed();
        config.keep_numbers(&at_start(&pinned, &config, index_of)).unwrap();
        let services = numbers(&config)[1].clone();
        assert_eq!(services, [("new", 0), ("cache", 1)], "the pinned service was divided");
    }

    /// The administrator has given `eth1` the name `lan`, and another interface has the name `eth1` now.
    #[test]
    fn a_port_is_its_interface_and_not_the_name() {
        let before = config();
        let mut after = read(&VALID.replace("\"eth1\"", "\"lan\""));
        after.ports.push(crate::config::Port {
            interface: "eth1".into(),
            number: 3,
            ..after.ports[0].clone()
        });
        let attached = BTreeMap::from([(10, 0), (11, 1), (12, 2)]);
        let index_of = |name: &str| match name {
            "lan" => Some(11),
            "eth1" => Some(99),
            name => index_of(name),
        };
        let named = BTreeSet::from([ServerId(2), ServerId(7)]);
        let known = at_reload(&before, &after, &attached, index_of, &named);
        assert_eq!(known.retired, BTreeSet::from([7]));
        after.keep_numbers(&known).unwrap();
        assert_eq!(numbers(&after)[0], [("eth0", 0), ("lan", 1), ("eth2", 2), ("eth1", 3)]);
    }

    #[test]
    fn a_port_without_an_interface_keeps_its_number_by_name() {
        let before = config();
        let mut after = config();
        after.ports.reverse();
        let known = at_reload(&before, &after, &BTreeMap::from([(10, 0)]), index_of, &BTreeSet::new());
        after.keep_numbers(&known).unwrap();
        assert_eq!(numbers(&after)[0], [("eth2", 2), ("eth1", 1), ("eth0", 0)]);
    }
}
