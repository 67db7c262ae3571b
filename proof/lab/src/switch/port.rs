//! Ports of a switch in the lab.

use std::net::{Ipv4Addr, Ipv6Addr};

use spillway_rules::PortId;

use super::own_addresses::own_addresses;
use crate::addresses;
use crate::forwarding::FarEnd;

/// A port of a [`LabSwitch`](crate::LabSwitch): an interface in its namespace, and the number that the lab gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchPort {
    id: PortId,
    interface: String,
    mac: [u8; 6],
    leads_to: LeadsTo,
}

/// What is at the other end of a port's cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeadsTo {
    /// The neighbour with this index in the row of switches.
    Switch(usize),
    /// A host with its addresses, to which the switch's kernel has routes, and the switch's own number in the networks.
    Host { ipv4: Ipv4Addr, ipv6: Ipv6Addr, switch_number: u8 },
}

impl SwitchPort {
    pub(super) fn new(id: PortId, interface: String, mac: [u8; 6], leads_to: LeadsTo) -> SwitchPort {
        SwitchPort { id, interface, mac, leads_to }
    }

    /// The port's number: 0 for the first port of the switch, 1 for the second.
    pub fn id(&self) -> PortId {
        self.id
    }

    /// The name of the port's interface in the switch's namespace.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The interface's Ethernet address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    pub(super) fn leads_to(&self) -> LeadsTo {
        self.leads_to
    }

    /// The set-up of the port's interface. The switch's kernel gets the own addresses and a route to the host, so that
    /// programs in the switch's namespace can answer packets that the XDP program passes to the kernel.
    pub(crate) fn far_end(&self) -> FarEnd {
        let interface = &self.interface;
        let after_up = match self.leads_to {
            LeadsTo::Switch(_) => String::new(),
            LeadsTo::Host { ipv4, ipv6, switch_number } => {
                let (own_ipv4, own_ipv6) = own_addresses(switch_number);
                format!(
                    "addr add {own_ipv4}/32 dev {interface}\naddr add {own_ipv6}/128 dev {interface} nodad\n\
                     route add {ipv4}/32 dev {interface} src {own_ipv4}\nroute add {ipv6}/128 dev {interface}\n"
                )
            }
        };
        FarEnd {
            properties: format!("address {}", addresses::mac_text(self.mac)),
            before_up: String::new(),
            after_up,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::own_addresses::own_number;

    #[test]
    fn a_port_to_a_host_has_the_own_addresses_and_a_route() {
        let leads_to = LeadsTo::Host {
            ipv4: addresses::ipv4(3),
            ipv6: addresses::ipv6(3),
            switch_number: own_number(1),
        };
        let port = SwitchPort::new(PortId::new(2).unwrap(), "s0b".into(), [2, 1, 0, 0, 1, 2], leads_to);
        let end = port.far_end();
        assert_eq!(end.properties, "address 02:01:00:00:01:02");
        let lines: Vec<_> = end.after_up.lines().collect();
        assert_eq!(
            lines,
            [
                "addr add 10.77.0.253/32 dev s0b",
                "addr add fd77::fd/128 dev s0b nodad",
                "route add 10.77.0.3/32 dev s0b src 10.77.0.253",
                "route add fd77::3/128 dev s0b",
            ]
        );
    }
}
