//! Addresses in the form of the switch's tables and of control messages.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use spillway_wire::switch::Endpoint;

/// An IPv6 address, or an IPv4 address as ::ffff:a.b.c.d (RFC 4291 §2.5.5.2).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub [u8; 16]);

impl Address {
    /// No address: 16 zero bytes.
    pub const ZERO: Address = Address([0; 16]);

    /// Whether the address is an IPv4 address.
    pub fn is_ipv4(self) -> bool {
        self.ip().is_ipv4()
    }

    /// The address as an IPv4 address, if it is one.
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// The address in Rust's own type.
    pub fn ip(self) -> IpAddr {
        IpAddr::V6(Ipv6Addr::from(self.0)).to_canonical()
    }
}

impl From<Ipv4Addr> for Address {
    fn from(ip: Ipv4Addr) -> Address {
        Address(ip.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Address {
    fn from(ip: Ipv6Addr) -> Address {
        Address(ip.octets())
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Address {
        match ip {
            IpAddr::V4(ip) => ip.into(),
            IpAddr::V6(ip) => ip.into(),
        }
    }
}

impl From<Endpoint> for Address {
    /// The endpoint's address, without its port.
    fn from(endpoint: Endpoint) -> Address {
        Address(endpoint.address())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_addresses_are_mapped_into_ipv6() {
        let address = Address::from(Ipv4Addr::new(192, 0, 2, 7));
        assert_eq!(address.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7]);
        assert!(address.is_ipv4());
        assert_eq!(address.ipv4(), Some(Ipv4Addr::new(192, 0, 2, 7)));
        let address = Address::from("fd00::1".parse::<Ipv6Addr>().unwrap());
        assert!(!address.is_ipv4());
        assert_eq!(address.ipv4(), None);
    }
}
