//! The stack's addresses, and which addresses a host may have.

use core::net::{IpAddr, Ipv4Addr};

/// An address of the stack on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// The address.
    pub ip: IpAddr,
    /// Length of the link's prefix in bits: addresses that share the prefix of `ip` are on the link. At most 32 for
    /// IPv4, and 128 for IPv6.
    pub prefix: u8,
}

impl OwnAddress {
    /// An address with its link's prefix. An IPv4 address that is mapped into IPv6 becomes an IPv4 address.
    pub fn new(ip: impl Into<IpAddr>, prefix: u8) -> OwnAddress {
        let ip = ip.into();
        let is_mapped = ip.is_ipv6() && ip.to_canonical().is_ipv4();
        let prefix = if is_mapped { prefix.saturating_sub(96) } else { prefix };
        OwnAddress { ip: ip.to_canonical(), prefix }
    }

    /// Whether a single other host may have `address`: not this end, nor the link's broadcast address (RFC 1122 §3.2.1.3).
    pub fn is_peer(&self, address: IpAddr) -> bool {
        let is_broadcast = match (address, self.ip) {
            (IpAddr::V4(address), IpAddr::V4(ip)) => {
                let hosts = u32::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0);
                hosts > 1 && address.to_bits() == ip.to_bits() | hosts
            }
            _ => false, // IPv6 has no broadcast addresses
        };
        is_host(address) && address != self.ip && !is_broadcast
    }

    /// Whether an IPv4 address is on the link.
    pub fn is_on_link(&self, address: Ipv4Addr) -> bool {
        let IpAddr::V4(ip) = self.ip else { return false };
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
        (address.to_bits() ^ ip.to_bits()) & mask == 0
    }

    /// Whether the prefix has at most as many bits as the address.
    pub(super) fn is_prefix_valid(&self) -> bool {
        self.prefix <= if self.ip.is_ipv4() { 32 } else { 128 }
    }
}

/// Whether a host may have this address (RFC 1122 §3.2.1.3, RFC 4291 §2.5). IPv4 addresses that are mapped into IPv6
/// never appear in packets.
pub(crate) fn is_host(address: IpAddr) -> bool {
    let is_never_a_host = address.is_unspecified() || address.is_multicast() || address.is_loopback();
    let is_special = match address {
        IpAddr::V4(address) => address.is_broadcast(),
        IpAddr::V6(address) => address.to_ipv4_mapped().is_some(),
    };
    !is_never_a_host && !is_special
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_ipv4_address_becomes_an_ipv4_address() {
        let mapped = OwnAddress::new("::ffff:10.0.0.1".parse::<IpAddr>().unwrap(), 120);
        assert_eq!(mapped, OwnAddress { ip: Ipv4Addr::new(10, 0, 0, 1).into(), prefix: 24 });
    }
}
