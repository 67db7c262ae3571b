//! Which servers may announce an address by ARP or neighbour discovery.

use alloc::collections::BTreeMap;

use super::{Config, ServerId};
use crate::address::Address;

impl Config {
    /// The addresses of servers, of their places, and of the switch's host, each with the ports whose servers may
    /// announce it: bit n for port n. No server may announce an address of the switch's host.
    pub fn homes(&self) -> BTreeMap<Address, u64> {
        let bit = |server: ServerId| self.server(server).map_or(0, |server| 1 << server.port.number());
        let servers = self.servers.iter().map(|server| (server.address, bit(server.id)));
        let places = self.places.iter().map(|place| (Address::from(place.at), bit(place.server)));
        let mut homes = BTreeMap::new();
        for (address, ports) in servers.chain(places) {
            *homes.entry(address).or_insert(0) |= ports;
        }
        homes.extend(self.own_addresses.iter().map(|address| (*address, 0)));
        homes
    }
}

#[cfg(test)]
mod tests {
    use crate::test_config::{address, config, server_address};

    #[test]
    fn addresses_belong_to_the_ports_of_their_servers() {
        let homes = config().homes();
        assert_eq!(homes[&server_address(2)], 1 << 2);
        assert_eq!(homes[&address("10.0.0.1")], 1 << 1, "a service endpoint is its original server's");
        assert_eq!(homes[&address("fd00::1")], 1 << 1);
        assert_eq!(homes[&address("10.0.0.254")], 0, "the switch's own");
        assert_eq!(homes.get(&address("192.0.2.7")), None);
    }

    #[test]
    fn servers_of_two_ports_may_share_an_address() {
        let mut config = config();
        config.servers[0].address = server_address(2);
        assert_eq!(config.homes()[&server_address(2)], 1 << 1 | 1 << 2);
    }
}
