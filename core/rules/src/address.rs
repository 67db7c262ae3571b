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

    /// Whether the address is a link-local one of IPv6 (fe80::/10).
    pub(crate) fn is_link_local_ipv6(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// Whether a router forwards packets with this source or destination (RFC 1812 §5.3.7, RFC 4291 §2.5): not if it is
    /// unspecified, of loopback, link-local, multicast or broadcast, nor an IPv4 address in an IPv6 packet.
    pub(crate) fn is_routable(self, is_ipv4: bool) -> bool {
        if is_ipv4 {
            let [.., a, b, c, d] = self.0;
            return !matches!(
                [a, b, c, d],
                [0 | 127 | 224..=239, ..] | [169, 254, ..] | [255, 255, 255, 255]
            );
        }
        let is_low = matches!(self.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 | 1]);
        !is_low && !self.is_ipv4() && self.0[0] != 0xff && !self.is_link_local_ipv6()
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
        assert!(address.is_routable(false));
        assert!(!address.is_ipv4());
        assert_eq!(address.ipv4(), None);
    }

    #[test]
    fn routers_do_not_forward_addresses_of_one_link() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "169.254.7.7",
            "224.0.0.1",
            "239.255.255.255",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "febf::1",
            "ff02::1",
            "ff0e::1",
        ] {
            let ip: IpAddr = text.parse().unwrap();
            assert!(!Address::from(ip).is_routable(ip.is_ipv4()), "{text}");
        }
        for text in [
            "1.0.0.0",
            "126.0.0.1",
            "128.0.0.1",
            "169.253.1.1",
            "223.255.255.255",
            "240.0.0.1",
            "::2",
            "fec0::1",
        ] {
            let ip: IpAddr = text.parse().unwrap();
            assert!(Address::from(ip).is_routable(ip.is_ipv4()), "{text}");
        }
        assert!(!Address::from(Ipv4Addr::new(10, 0, 0, 1)).is_routable(false), "a mapped address is IPv4's");
    }
}
