//! Checks of servers in other racks.

use super::check::check_unicast;
use super::{Config, ConfigError, Encapsulation, Mode, Server};

impl Config {
    /// Checks a server to which a tunnel leads.
    pub(super) fn check_encapsulation(&self, server: &Server) -> Result<(), ConfigError> {
        let Some(Encapsulation { next_hop }) = server.encapsulation else { return Ok(()) };
        check_unicast(next_hop)?;
        if self.mode != Mode::Host {
            return Err(ConfigError::EncapsulationInGateway(server.id));
        }
        let local = self.local_server();
        if local.is_some_and(|local| local.id == server.id) {
            return Err(ConfigError::EncapsulationOfLocal(server.id));
        }
        if self.ports.iter().any(|port| port.mac == next_hop) {
            return Err(ConfigError::NextHopOwn(server.id, next_hop));
        }
        match local {
            Some(local) if local.address.is_ipv4() != server.address.is_ipv4() => {
                Err(ConfigError::EncapsulationFamily(server.id, local.address))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use spillway_wire::packet::ethernet::Mac;
    use spillway_wire::switch::ServerId;

    use super::*;
    use crate::test_config::{address, config, host_config, mac, router_mac, server_mac};

    /// The result of a check of host mode with a next hop for one of the servers.
    fn checked(server: usize, next_hop: Mac, change: impl FnOnce(&mut Config)) -> Result<(), ConfigError> {
        let mut config = host_config();
        config.servers[server].encapsulation = Some(Encapsulation { next_hop });
        change(&mut config);
        let result = config.check();
        assert!(result.is_ok() || result.is_err_and(|error| !error.to_string().is_empty()));
        result
    }

    #[test]
    fn servers_of_other_racks_may_be_encapsulated() {
        assert_eq!(checked(1, router_mac(), |_| ()), Ok(()));
        assert_eq!(checked(1, server_mac(2), |_| ()), Ok(()), "on the same segment");
        let v6 = |config: &mut Config| {
            config.servers[0].address = address("fd00::1");
            config.servers[1].address = address("fd00:9::2");
        };
        assert_eq!(checked(1, router_mac(), v6), Ok(()));
        // Without the interface the local server is not known.
        assert_eq!(checked(0, router_mac(), |config| config.ports[0].mac = mac(99)), Ok(()));
    }

    #[test]
    fn tunnels_that_cannot_work_are_refused() {
        let group = Mac::BROADCAST;
        assert_eq!(checked(1, group, |_| ()), Err(ConfigError::MacNotUnicast(group)));
        assert_eq!(
            checked(1, server_mac(1), |_| ()),
            Err(ConfigError::NextHopOwn(ServerId(2), server_mac(1))),
            "the interface itself"
        );
        assert_eq!(checked(0, router_mac(), |_| ()), Err(ConfigError::EncapsulationOfLocal(ServerId(1))));
        let mixed = |config: &mut Config| config.servers[1].address = address("fd00:9::2");
        let local = host_config().servers[0].address;
        assert_eq!(
            checked(1, router_mac(), mixed),
            Err(ConfigError::EncapsulationFamily(ServerId(2), local))
        );
        let mut gateway = config();
        gateway.servers[1].encapsulation = Some(Encapsulation { next_hop: router_mac() });
        assert_eq!(gateway.check(), Err(ConfigError::EncapsulationInGateway(ServerId(2))));
    }
}
