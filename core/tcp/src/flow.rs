//! The two ends of a connection.

use core::hash::{Hash, Hasher};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use spillway_wire::packet::{ethernet, ipv4, ipv6};

/// The segment size of a peer whose SYN has no MSS option, in bytes (RFC 9293 §3.7.1, MUST-15).
const MSS_DEFAULT_V4: u16 = 536;
const MSS_DEFAULT_V6: u16 = 1220;

/// Offsets of the TCP header in a frame.
pub(crate) const TCP_AT_V4: usize = ethernet::HEADER_BYTES + ipv4::HEADER_BYTES;
const TCP_AT_V6: usize = ethernet::HEADER_BYTES + ipv6::HEADER_BYTES;

/// Identifies a connection: the local and the peer's address and port, both of one family. IPv4 addresses that are
/// mapped into IPv6 count as IPv4 addresses; IPv6 addresses have neither flow label nor scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    addresses: Addresses,
    local_port: u16,
    peer_port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Addresses {
    V4 { local: Ipv4Addr, peer: Ipv4Addr },
    V6 { local: Ipv6Addr, peer: Ipv6Addr },
}

impl Flow {
    /// A flow between these ends; `None` if their addresses are of two families.
    pub fn new(local: SocketAddr, peer: SocketAddr) -> Option<Flow> {
        let addresses = match (local.ip().to_canonical(), peer.ip().to_canonical()) {
            (IpAddr::V4(local), IpAddr::V4(peer)) => Addresses::V4 { local, peer },
            (IpAddr::V6(local), IpAddr::V6(peer)) => Addresses::V6 { local, peer },
            _ => return None,
        };
        Some(Flow::between(addresses, local.port(), peer.port()))
    }

    #[inline]
    pub(crate) fn between(addresses: Addresses, local_port: u16, peer_port: u16) -> Flow {
        Flow { addresses, local_port, peer_port }
    }

    /// This end's address and port.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(self.addresses.local(), self.local_port)
    }

    /// The peer's address and port.
    pub fn peer(&self) -> SocketAddr {
        SocketAddr::new(self.addresses.peer(), self.peer_port)
    }

    #[inline]
    pub(crate) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    #[inline]
    pub(crate) fn local_port(&self) -> u16 {
        self.local_port
    }

    #[inline]
    pub(crate) fn peer_port(&self) -> u16 {
        self.peer_port
    }

    #[inline]
    pub(crate) fn is_ipv6(&self) -> bool {
        matches!(self.addresses, Addresses::V6 { .. })
    }

    /// Bytes of the IP and TCP headers without options.
    pub(crate) fn headers_bytes(&self) -> u16 {
        if self.is_ipv6() { 60 } else { 40 }
    }

    /// Offset of the TCP header in a frame.
    #[inline]
    pub(crate) fn tcp_at(&self) -> usize {
        if self.is_ipv6() { TCP_AT_V6 } else { TCP_AT_V4 }
    }

    /// The segment size of a peer whose SYN has no MSS option, in bytes.
    pub(crate) fn mss_default(&self) -> u16 {
        if self.is_ipv6() { MSS_DEFAULT_V6 } else { MSS_DEFAULT_V4 }
    }
}

impl Hash for Flow {
    /// Few writes of whole words instead of one per field, because each received segment hashes a flow.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let ports = u64::from(self.local_port) << 16 | u64::from(self.peer_port);
        match self.addresses {
            Addresses::V4 { local, peer } => {
                state.write_u64(u64::from(local.to_bits()) << 32 | u64::from(peer.to_bits()));
            }
            Addresses::V6 { local, peer } => {
                state.write_u128(local.to_bits());
                state.write_u128(peer.to_bits());
            }
        }
        state.write_u64(ports);
    }
}

impl Addresses {
    fn local(&self) -> IpAddr {
        match *self {
            Addresses::V4 { local, .. } => local.into(),
            Addresses::V6 { local, .. } => local.into(),
        }
    }

    fn peer(&self) -> IpAddr {
        match *self {
            Addresses::V4 { peer, .. } => peer.into(),
            Addresses::V6 { peer, .. } => peer.into(),
        }
    }
}

/// The form of an address that flows store: an IPv4 address that is mapped into IPv6 (RFC 4291 §2.5.5.2) becomes an
/// IPv4 address, and an IPv6 address loses its flow label and scope.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hasher::keyed;
    use crate::isn::Key;
    use core::hash::BuildHasher;

    fn flow(local: &str, peer: &str) -> Flow {
        Flow::new(local.parse().unwrap(), peer.parse().unwrap()).unwrap()
    }

    #[test]
    fn each_part_of_a_flow_changes_its_hash() {
        let flows = [
            flow("10.0.0.1:80", "10.0.0.2:4000"),
            flow("10.0.0.1:81", "10.0.0.2:4000"),
            flow("10.0.0.1:80", "10.0.0.3:4000"),
            flow("10.0.0.2:80", "10.0.0.1:4000"),
            flow("[fd00::1]:80", "[fd00::2]:4000"),
            flow("[fd00::1]:80", "[fd00::2]:4001"),
            flow("[fd00::1]:80", "[fd01::2]:4000"),
            flow("[fd01::1]:80", "[fd00::2]:4000"),
            flow("[fd00::2]:80", "[fd00::1]:4000"),
        ];
        let hasher = keyed(Key([1; 16]));
        for (index, one) in flows.iter().enumerate() {
            for other in &flows[index + 1..] {
                assert_ne!(
                    hasher.hash_one(one),
                    hasher.hash_one(other),
                    "the hashes of {one:?} and {other:?} should differ"
                );
            }
        }
    }

    #[test]
    fn header_lengths_follow_the_family() {
        let (v4, v6) = (flow("10.0.0.1:80", "10.0.0.2:1"), flow("[fd00::1]:80", "[fd00::2]:1"));
        assert_eq!((v4.headers_bytes(), v4.tcp_at(), v4.mss_default()), (40, 34, 536));
        assert_eq!((v6.headers_bytes(), v6.tcp_at(), v6.mss_default()), (60, 54, 1220));
    }

    #[test]
    fn both_ends_have_one_family() {
        let (v4, v6) = ("10.0.0.1:80".parse().unwrap(), "[fd00::1]:80".parse().unwrap());
        assert_eq!((Flow::new(v4, v6), Flow::new(v6, v4)), (None, None));
        let mapped = Flow::new("[::ffff:10.0.0.2]:80".parse().unwrap(), v4).unwrap();
        assert_eq!((mapped.local(), mapped.peer()), ("10.0.0.2:80".parse().unwrap(), v4));
        assert_eq!(Flow::new(v6, v6).unwrap().local(), v6);
    }

    #[test]
    fn mapped_addresses_scopes_and_flow_labels_are_removed() {
        let mapped = "[::ffff:10.0.0.1]:80".parse().unwrap();
        assert_eq!(canonical(mapped), "10.0.0.1:80".parse().unwrap());
        let scoped = core::net::SocketAddrV6::new("fe80::1".parse().unwrap(), 80, 7, 3);
        assert_eq!(canonical(scoped.into()), "[fe80::1]:80".parse().unwrap());
    }
}
