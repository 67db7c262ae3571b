//! Which client addresses a link may carry.
//!
//! A helper states its clients' addresses, so a server that trusts addresses (redis's protected mode, access lists)
//! trusts the helper. The rules bound that trust: a helper may state only addresses inside the allowed ranges, and over
//! a link that is not loopback neither loopback addresses nor the server's own. A library client may state only its own
//! address.

use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

use spillway_wire::preamble::Role;

/// Prefix length of `::ffff:0:0/96`, the IPv4-mapped addresses (RFC 4291 §2.5.5.2).
const MAPPED_PREFIX: u8 = 96;

/// A range of addresses in CIDR notation. IPv4 addresses mapped into IPv6 count as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    network: IpAddr,
    prefix: u8,
}

/// Why a text is not an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeError {
    /// The part before the slash is not an address.
    Address,
    /// The part after the slash is not a prefix length of the address family.
    Prefix,
    /// Bits are set after the prefix: probably a typing error.
    HostBits,
    /// The address is IPv4-mapped, but the prefix is shorter than that of all mapped addresses.
    MappedPrefix,
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RangeError::Address => "not an address range such as 10.0.0.0/8 or 2001:db8::/32",
            RangeError::Prefix => "the number after the slash must be 0 to 32 for IPv4, 0 to 128 for IPv6",
            RangeError::HostBits => "address bits are set after the prefix; zero them or lengthen the prefix",
            RangeError::MappedPrefix => {
                "an IPv4-mapped range needs a prefix of 96 to 128; better write it as IPv4, such as 10.0.0.0/8"
            }
        })
    }
}

impl core::error::Error for RangeError {}

impl FromStr for AddressRange {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<AddressRange, RangeError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let network: IpAddr = address.parse().map_err(|_| RangeError::Address)?;
        let width = if network.is_ipv4() { 32 } else { 128 };
        let mut prefix = match prefix {
            None => width,
            Some(digits) => digits.parse().ok().filter(|p| *p <= width).ok_or(RangeError::Prefix)?,
        };
        // `contains` compares IPv4 addresses in their IPv4 form, so a mapped range must have that form, too.
        let network = network.to_canonical();
        if network.is_ipv4() && width == 128 {
            prefix = u8::checked_sub(prefix, MAPPED_PREFIX).ok_or(RangeError::MappedPrefix)?;
        }
        let range = AddressRange { network, prefix };
        if range.masked(network) == network { Ok(range) } else { Err(RangeError::HostBits) }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl AddressRange {
    /// Whether the address lies inside the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.network.is_ipv4() && self.masked(address) == self.network
    }

    /// The default: private, IPv6 link-local and loopback ranges.
    pub fn private() -> Vec<AddressRange> {
        let v4 = |a, b, prefix| AddressRange { network: Ipv4Addr::new(a, b, 0, 0).into(), prefix };
        let v6 =
            |head, prefix| AddressRange { network: Ipv6Addr::new(head, 0, 0, 0, 0, 0, 0, 0).into(), prefix };
        let loopback_v6 = AddressRange { network: Ipv6Addr::LOCALHOST.into(), prefix: 128 };
        Vec::from([
            v4(10, 0, 8),
            v4(172, 16, 12),
            v4(192, 168, 16),
            v4(127, 0, 8),
            v6(0xfc00, 7),
            v6(0xfe80, 10),
            loopback_v6,
        ])
    }

    fn masked(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                Ipv4Addr::from_bits(v4.to_bits() & mask).into()
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                Ipv6Addr::from_bits(v6.to_bits() & mask).into()
            }
        }
    }
}

/// Why a link may not carry a client address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForbiddenAddress {
    /// Not inside the allowed ranges.
    OutsideRanges,
    /// The server's own address, over a link that is not loopback.
    ServersOwn,
    /// A loopback address over a link that is not loopback.
    Loopback,
    /// A library client stated another address than that of its link.
    NotPeersAddress,
}

impl fmt::Display for ForbiddenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ForbiddenAddress::OutsideRanges => "outside the allowed ranges (--allow-clients)",
            ForbiddenAddress::ServersOwn => "the server's own address",
            ForbiddenAddress::Loopback => "a loopback address over a link that is not loopback",
            ForbiddenAddress::NotPeersAddress => "not the address of the client that opened the link",
        })
    }
}

/// Which client addresses the links of one server may carry.
#[derive(Clone, Debug)]
pub struct AddressRules {
    /// Ranges of client addresses that helpers may state.
    pub allow: Vec<AddressRange>,
}

impl Default for AddressRules {
    fn default() -> AddressRules {
        AddressRules { allow: AddressRange::private() }
    }
}

impl AddressRules {
    /// Checks whether a link of this role, between `peer` and our address `local`, may carry `client`.
    pub fn check(
        &self,
        role: Role,
        peer: SocketAddr,
        local: SocketAddr,
        client: SocketAddr,
    ) -> Result<(), ForbiddenAddress> {
        let (link_peer, link_local, ip) = (peer.ip().to_canonical(), local.ip().to_canonical(), client.ip());
        let ip = ip.to_canonical();
        if role == Role::Client && (ip != link_peer || client.port() != peer.port()) {
            return Err(ForbiddenAddress::NotPeersAddress);
        }
        let is_loopback_link = link_peer.is_loopback() && link_local.is_loopback();
        if ip.is_loopback() && !is_loopback_link {
            return Err(ForbiddenAddress::Loopback);
        }
        if ip == link_local && !is_loopback_link {
            return Err(ForbiddenAddress::ServersOwn);
        }
        if role == Role::Helper && !self.allow.iter().any(|range| range.contains(ip)) {
            return Err(ForbiddenAddress::OutsideRanges);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn ranges_parse_and_contain_their_addresses() {
        for (text, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("0.0.0.0/0", "203.0.113.9", "::1"),
            ("192.0.2.7/32", "192.0.2.7", "192.0.2.8"),
            ("2001:db8::/32", "2001:db8:1::5", "2001:db9::"),
            ("::/0", "fe80::1", "10.0.0.1"),
            ("172.16.0.0/12", "::ffff:172.31.0.1", "172.32.0.1"),
        ] {
            let range: AddressRange = text.parse().unwrap();
            assert_eq!(range.to_string(), text);
            assert!(range.contains(inside.parse().unwrap()), "{text} should contain {inside}");
            assert!(!range.contains(outside.parse().unwrap()), "{text} should not contain {outside}");
        }
        assert_eq!("10.0.0.1".parse::<AddressRange>().unwrap().to_string(), "10.0.0.1/32");
        assert_eq!("10.0.0.1/8".parse::<AddressRange>(), Err(RangeError::HostBits));
        assert_eq!("10.0.0.0/33".parse::<AddressRange>(), Err(RangeError::Prefix));
        assert_eq!("ten/8".parse::<AddressRange>(), Err(RangeError::Address));
    }

    #[test]
    fn a_range_in_ipv4_mapped_notation_is_the_ipv4_range() {
        for (text, ipv4) in [
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:192.0.2.7", "192.0.2.7/32"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
        ] {
            let range: AddressRange = text.parse().unwrap();
            assert_eq!(range, ipv4.parse().unwrap(), "{text} should be the IPv4 range");
            assert_eq!(range.to_string(), ipv4);
        }
        assert!(
            "::ffff:10.0.0.0/104".parse::<AddressRange>().unwrap().contains([10, 9, 9, 9].into()),
            "a mapped prefix should contain its IPv4 addresses"
        );
        assert_eq!("::ffff:10.0.0.1/104".parse::<AddressRange>(), Err(RangeError::HostBits));
        assert_eq!("::ffff:10.0.0.0/95".parse::<AddressRange>(), Err(RangeError::MappedPrefix));
    }

    #[test]
    fn a_link_carries_only_allowed_addresses() {
        let rules = AddressRules::default();
        let check = |role, peer: &str, local: &str, client: &str| {
            rules.check(role, peer.parse().unwrap(), local.parse().unwrap(), client.parse().unwrap())
        };
        let (helper, server) = ("10.0.0.2:4000", "10.0.0.5:11411");
        assert_eq!(check(Role::Helper, helper, server, "10.9.9.9:1"), Ok(()));
        assert_eq!(check(Role::Helper, helper, server, "8.8.8.8:1"), Err(ForbiddenAddress::OutsideRanges));
        assert_eq!(check(Role::Helper, helper, server, "10.0.0.5:1"), Err(ForbiddenAddress::ServersOwn));
        assert_eq!(
            check(Role::Helper, helper, server, "[::ffff:10.0.0.5]:1"),
            Err(ForbiddenAddress::ServersOwn)
        );
        assert_eq!(check(Role::Helper, helper, server, "127.0.0.1:1"), Err(ForbiddenAddress::Loopback));
        assert_eq!(check(Role::Helper, helper, server, "[::1]:1"), Err(ForbiddenAddress::Loopback));
        assert_eq!(check(Role::Helper, "127.0.0.1:7", "127.0.0.1:8", "127.0.0.1:1"), Ok(()));
        assert_eq!(check(Role::Client, "8.8.8.8:7", server, "8.8.8.8:7"), Ok(()));
        assert_eq!(
            check(Role::Client, "8.8.8.8:7", server, "8.8.8.8:8"),
            Err(ForbiddenAddress::NotPeersAddress)
        );
        assert_eq!(
            check(Role::Client, "10.0.0.2:7", server, "10.0.0.3:7"),
            Err(ForbiddenAddress::NotPeersAddress)
        );
    }
}
