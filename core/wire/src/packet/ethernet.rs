//! Ethernet frames (IEEE 802.3) without VLAN tags. The network card handles the frame check sequence.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

use super::{Layer, PacketError};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 14;

/// EtherType of IPv4.
pub const KIND_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const KIND_ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const KIND_IPV6: u16 = 0x86dd;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// No address: the target of an ARP request.
    pub const ZERO: Mac = Mac([0; 6]);
    /// The broadcast address.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Whether the address belongs to one interface: it is neither a group address nor zero.
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self != Mac::ZERO
    }

    /// The address for packets to an IPv4 group (RFC 1112 §6.4).
    pub fn of_group_v4(group: Ipv4Addr) -> Mac {
        let [_, b, c, d] = group.octets();
        Mac([0x01, 0x00, 0x5e, b & 0x7f, c, d])
    }

    /// The address for packets to an IPv6 group (RFC 2464 §7).
    pub fn of_group_v6(group: Ipv6Addr) -> Mac {
        let [.., a, b, c, d] = group.octets();
        Mac([0x33, 0x33, a, b, c, d])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The destination.
    pub target: Mac,
    /// The sender.
    pub source: Mac,
    /// The EtherType of the payload: [`KIND_IPV4`], [`KIND_ARP`], [`KIND_IPV6`] or another.
    pub kind: u16,
}

impl Header {
    /// Parses a frame. Returns the header and the payload, which includes the padding of short packets.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(Header, &[u8]), PacketError> {
        let (head, payload) =
            frame.split_first_chunk::<HEADER_BYTES>().ok_or(PacketError::Truncated(Layer::Ethernet))?;
        let [t0, t1, t2, t3, t4, t5, s0, s1, s2, s3, s4, s5, k0, k1] = *head;
        let header = Header {
            target: Mac([t0, t1, t2, t3, t4, t5]),
            source: Mac([s0, s1, s2, s3, s4, s5]),
            kind: u16::from_be_bytes([k0, k1]),
        };
        Ok((header, payload))
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; HEADER_BYTES]) {
        out[..6].copy_from_slice(&self.target.0);
        out[6..12].copy_from_slice(&self.source.0);
        out[12..].copy_from_slice(&self.kind.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_known_frame_parses_into_header_and_payload() {
        let frame = [0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x08, 0x00, 0x45];
        let (header, payload) = Header::parse(&frame).unwrap();
        assert_eq!(header.target, Mac([2, 0, 0, 0, 0, 1]));
        assert_eq!(header.source.to_string(), "02:00:00:00:00:02");
        assert_eq!(header.kind, KIND_IPV4);
        assert_eq!(payload, [0x45]);
        assert_eq!(Header::parse(&frame[..13]), Err(PacketError::Truncated(Layer::Ethernet)));
    }

    #[test]
    fn group_and_zero_addresses_are_not_unicast() {
        assert!(Mac([2, 0, 0, 0, 0, 1]).is_unicast(), "a local unicast address should be unicast");
        for group in [Mac::BROADCAST, Mac::ZERO, Mac::of_group_v4(Ipv4Addr::new(224, 0, 0, 251))] {
            assert!(!group.is_unicast(), "{group} should not be a unicast address");
        }
        assert_eq!(Mac::of_group_v4(Ipv4Addr::new(239, 255, 1, 2)), Mac([1, 0, 0x5e, 0x7f, 1, 2]));
        let group = "ff02::1:ff12:3456".parse().unwrap();
        assert_eq!(Mac::of_group_v6(group), Mac([0x33, 0x33, 0xff, 0x12, 0x34, 0x56]));
    }

    proptest! {
        #[test]
        fn a_parsed_frame_is_emitted_unchanged(frame in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok((header, payload)) = Header::parse(&frame) {
                let mut out = [0; HEADER_BYTES];
                header.emit(&mut out);
                prop_assert_eq!([&out, payload].concat(), frame);
            }
        }
    }
}
