//! Addresses of hosts and switches in a lab's networks.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The IPv4 address that ends with this number.
pub(crate) fn ipv4(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, number)
}

/// The IPv6 address that ends with this number.
pub(crate) fn ipv6(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number.into())
}

/// A host's Ethernet address: locally administered, and ends with its IPv4 address.
pub(crate) fn host_mac(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [2, 0, a, b, c, d]
}

/// An Ethernet address as `ip` reads it.
pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_addresses_are_local_and_unicast() {
        assert_eq!(mac_text(host_mac(Ipv4Addr::new(10, 77, 0, 62))), "02:00:0a:4d:00:3e");
    }
}
