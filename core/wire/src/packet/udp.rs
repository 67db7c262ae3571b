//! UDP datagrams (RFC 768).

use core::net::{Ipv4Addr, Ipv6Addr};

use super::checksum::{Sum, pseudo_v4, pseudo_v6};
use super::ipv4::PROTOCOL_UDP;
use super::{Layer, PacketError};

/// Bytes of a header.
pub const HEADER_BYTES: usize = HEADER_BYTES_U16 as usize;
const HEADER_BYTES_U16: u16 = 8;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's port; 0 means none.
    pub source: u16,
    /// The receiver's port.
    pub target: u16,
    /// Bytes after the header.
    pub payload_bytes: u16,
}

impl Header {
    /// Parses the payload of an IPv4 packet into header and payload. A checksum of 0 means no checksum.
    pub fn parse_v4(
        bytes: &[u8],
        source: Ipv4Addr,
        target: Ipv4Addr,
    ) -> Result<(Header, &[u8]), PacketError> {
        let (header, datagram, check) = Header::parse_header(bytes)?;
        if check != 0 {
            Header::verify(
                pseudo_v4(source, target, PROTOCOL_UDP, header.datagram_bytes()).add_bytes(datagram),
            )?;
        }
        Ok((header, &datagram[HEADER_BYTES..]))
    }

    /// Parses the payload of an IPv6 packet into header and payload. A checksum of 0 is an error (RFC 8200 §8.1).
    pub fn parse_v6(
        bytes: &[u8],
        source: Ipv6Addr,
        target: Ipv6Addr,
    ) -> Result<(Header, &[u8]), PacketError> {
        let (header, datagram, check) = Header::parse_header(bytes)?;
        if check == 0 {
            return Err(PacketError::Checksum(Layer::Udp));
        }
        Header::verify(pseudo_v6(source, target, PROTOCOL_UDP, header.datagram_bytes()).add_bytes(datagram))?;
        Ok((header, &datagram[HEADER_BYTES..]))
    }

    /// Bytes of header and payload.
    fn datagram_bytes(&self) -> u32 {
        u32::from(HEADER_BYTES_U16) + u32::from(self.payload_bytes)
    }

    fn verify(sum: Sum) -> Result<(), PacketError> {
        if sum.finish() == 0 { Ok(()) } else { Err(PacketError::Checksum(Layer::Udp)) }
    }

    /// Parses the header. Returns the header, the datagram without padding, and the checksum.
    fn parse_header(bytes: &[u8]) -> Result<(Header, &[u8], u16), PacketError> {
        let [s0, s1, t0, t1, l0, l1, c0, c1] =
            *bytes.first_chunk::<HEADER_BYTES>().ok_or(PacketError::Truncated(Layer::Udp))?;
        let length = u16::from_be_bytes([l0, l1]);
        let payload_bytes = length.checked_sub(HEADER_BYTES_U16).ok_or(PacketError::Length(Layer::Udp))?;
        let datagram = bytes.get(..usize::from(length)).ok_or(PacketError::Truncated(Layer::Udp))?;
        let header = Header {
            source: u16::from_be_bytes([s0, s1]),
            target: u16::from_be_bytes([t0, t1]),
            payload_bytes,
        };
        Ok((header, datagram, u16::from_be_bytes([c0, c1])))
    }

    /// Emits the header before the payload, which `out` already holds. `pseudo` is the pseudo-header's sum for the
    /// whole datagram. Returns the datagram's length.
    ///
    /// # Panics
    /// If `out` is shorter than header and payload.
    pub fn emit(&self, out: &mut [u8], pseudo: Sum) -> usize {
        let length = self.payload_bytes.saturating_add(HEADER_BYTES_U16);
        let out = &mut out[..usize::from(length)];
        out[..2].copy_from_slice(&self.source.to_be_bytes());
        out[2..4].copy_from_slice(&self.target.to_be_bytes());
        out[4..6].copy_from_slice(&length.to_be_bytes());
        out[6..8].copy_from_slice(&[0, 0]);
        let check = match pseudo.add_bytes(out).finish() {
            0 => 0xffff, // equal to 0 in one's complement; a field of 0 would mean no checksum
            check => check,
        };
        out[6..8].copy_from_slice(&check.to_be_bytes());
        out.len()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

    fn emitted(payload: &[u8]) -> Vec<u8> {
        let header = Header { source: 4711, target: 53, payload_bytes: payload.len() as u16 };
        let mut out = [&[0; HEADER_BYTES][..], payload].concat();
        let length = out.len();
        assert_eq!(header.emit(&mut out, pseudo_v4(LOCAL, PEER, PROTOCOL_UDP, length as u32)), length);
        out
    }

    #[test]
    fn a_datagram_parses_and_padding_is_ignored() {
        let padded = [emitted(b"what?").as_slice(), &[0; 3]].concat();
        let header = Header { source: 4711, target: 53, payload_bytes: 5 };
        assert_eq!(Header::parse_v4(&padded, LOCAL, PEER), Ok((header, &b"what?"[..])));
        assert_eq!(padded[..6], [0x12, 0x67, 0, 53, 0, 13]);
    }

    #[test]
    fn altered_datagrams_and_other_addresses_are_rejected() {
        let datagram = emitted(b"what?");
        for offset in 0..datagram.len() {
            let mut damaged = datagram.clone();
            damaged[offset] ^= 0x10;
            assert!(
                Header::parse_v4(&damaged, LOCAL, PEER).is_err(),
                "a datagram with byte {offset} altered should be rejected"
            );
        }
        assert_eq!(Header::parse_v4(&datagram, LOCAL, LOCAL), Err(PacketError::Checksum(Layer::Udp)));
    }

    #[test]
    fn a_datagram_without_checksum_is_accepted_only_in_ipv4() {
        let mut datagram = emitted(b"what?");
        datagram[6..8].fill(0);
        assert!(
            Header::parse_v4(&datagram, LOCAL, PEER).is_ok(),
            "a datagram without checksum should be accepted in IPv4"
        );
        let (local, peer) = (LOCAL.to_ipv6_mapped(), PEER.to_ipv6_mapped());
        assert_eq!(Header::parse_v6(&datagram, local, peer), Err(PacketError::Checksum(Layer::Udp)));
    }

    #[test]
    fn a_computed_checksum_of_zero_is_emitted_as_all_ones() {
        // The checksum of the first datagram as payload makes the sum of the second one zero.
        let mut datagram = emitted(&[0, 0]);
        let payload = [datagram[6], datagram[7]];
        datagram = emitted(&payload);
        assert_eq!(datagram[6..8], [0xff, 0xff]);
        assert!(
            Header::parse_v4(&datagram, LOCAL, PEER).is_ok(),
            "the checksum of all ones should be accepted"
        );
    }

    #[test]
    fn invalid_lengths_are_rejected() {
        let datagram = emitted(b"what?");
        for (length, error) in
            [(7, PacketError::Length(Layer::Udp)), (14, PacketError::Truncated(Layer::Udp))]
        {
            let mut altered = datagram.clone();
            altered[5] = length;
            assert_eq!(Header::parse_v4(&altered, LOCAL, PEER), Err(error));
        }
        for cut in 0..datagram.len() {
            let cut = Header::parse_v4(&datagram[..cut], LOCAL, PEER);
            assert_eq!(cut, Err(PacketError::Truncated(Layer::Udp)));
        }
    }

    proptest! {
        #[test]
        fn every_datagram_survives_a_round_trip(
            source: u16, target: u16, source_ip: u128, target_ip: u128,
            payload in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let (source_ip, target_ip) = (Ipv6Addr::from_bits(source_ip), Ipv6Addr::from_bits(target_ip));
            let header = Header { source, target, payload_bytes: payload.len() as u16 };
            let mut out = [&[0; HEADER_BYTES][..], &payload].concat();
            let length = out.len() as u32;
            header.emit(&mut out, pseudo_v6(source_ip, target_ip, PROTOCOL_UDP, length));
            prop_assert_eq!(Header::parse_v6(&out, source_ip, target_ip), Ok((header, payload.as_slice())));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..60), looks_valid: bool) {
            if looks_valid && bytes.len() >= HEADER_BYTES {
                (bytes[4], bytes[5], bytes[6], bytes[7]) = (0, bytes[5] % 64, 0, 0);
            }
            if let Ok((header, payload)) = Header::parse_v4(&bytes, LOCAL, PEER) {
                prop_assert_eq!(payload.len(), usize::from(header.payload_bytes));
            }
            let _ = Header::parse_v6(&bytes, LOCAL.to_ipv6_mapped(), PEER.to_ipv6_mapped());
        }
    }
}
