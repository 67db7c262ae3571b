//! IPv4 headers (RFC 791). Options are skipped. Fragments are refused, except a first fragment that an ICMP message quotes.

use core::net::Ipv4Addr;

use super::checksum::Sum;
use super::{Layer, PacketError};

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = HEADER_BYTES_U16 as usize;
const HEADER_BYTES_U16: u16 = 20;

/// Protocol number of ICMP.
pub const PROTOCOL_ICMP: u8 = 1;
/// Protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// Protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// Time to live of a new packet (RFC 1700, IP time to live parameter).
const TTL_DEFAULT: u8 = 64;

const DONT_FRAGMENT: u16 = 0x4000;
/// Mask of the "more fragments" bit and the fragment offset: a packet is a fragment if any of them is set.
const FRAGMENT_MASK: u16 = 0x3fff;
/// Mask of the fragment offset, which is 0 in a packet's first fragment.
const FRAGMENT_OFFSET_MASK: u16 = 0x1fff;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's address.
    pub source: Ipv4Addr,
    /// The receiver's address.
    pub target: Ipv4Addr,
    /// The protocol of the payload: [`PROTOCOL_TCP`] or another.
    pub protocol: u8,
    /// Remaining hops.
    pub ttl: u8,
    /// Differentiated services (RFC 2474), and congestion notification (RFC 3168) in the two lowest bits.
    pub dscp_ecn: u8,
    /// Identifies the fragments of one packet.
    pub ident: u16,
    /// Routers must not fragment the packet: if it exceeds the MTU, they drop it and report the MTU.
    pub dont_fragment: bool,
    /// Bytes after the header.
    pub payload_bytes: u16,
}

impl Header {
    /// The header of a new packet that routers must not fragment. Such packets need no identification (RFC 6864 §4.1).
    #[inline]
    pub fn new(source: Ipv4Addr, target: Ipv4Addr, protocol: u8, payload_bytes: u16) -> Header {
        Header {
            source,
            target,
            protocol,
            ttl: TTL_DEFAULT,
            dscp_ecn: 0,
            ident: 0,
            dont_fragment: true,
            payload_bytes,
        }
    }

    /// Parses a packet. Returns the header, its length in bytes with options, and the payload without padding.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Header, usize, &[u8]), PacketError> {
        let (header, header_bytes) = Header::parse_fixed_part(packet, FRAGMENT_MASK)?;
        let header_slice = packet.get(..header_bytes).ok_or(PacketError::Truncated(Layer::Ipv4))?;
        let total_bytes = header_bytes + usize::from(header.payload_bytes);
        let payload = packet.get(header_bytes..total_bytes).ok_or(PacketError::Truncated(Layer::Ipv4))?;
        let sum = match <&[u8; HEADER_BYTES]>::try_from(header_slice) {
            Ok(without_options) => Sum::ZERO.add_array(without_options),
            Err(_) => Sum::ZERO.add_bytes(header_slice),
        };
        if sum.finish() != 0 {
            return Err(PacketError::Checksum(Layer::Ipv4));
        }
        Ok((header, header_bytes, payload))
    }

    /// Parses a packet that an ICMP message quotes. Returns the header and the quoted part of the payload. Routers
    /// quote headers that they have partly modified, so the checksum is not verified. The first fragment of a packet is
    /// accepted, because it has the header of the payload's protocol: ports, and sequence numbers (RFC 792).
    pub fn parse_quoted(packet: &[u8]) -> Result<(Header, &[u8]), PacketError> {
        let (header, header_bytes) = Header::parse_fixed_part(packet, FRAGMENT_OFFSET_MASK)?;
        let rest = packet.get(header_bytes..).ok_or(PacketError::Truncated(Layer::Ipv4))?;
        Ok((header, &rest[..rest.len().min(usize::from(header.payload_bytes))]))
    }

    /// Parses the fixed part. Returns the header and its length in bytes with options. A packet is refused as a fragment
    /// if any bit of `refused_fragments` is set in the word of the fragment offset.
    #[inline]
    fn parse_fixed_part(packet: &[u8], refused_fragments: u16) -> Result<(Header, usize), PacketError> {
        let head = packet.first_chunk::<HEADER_BYTES>().ok_or(PacketError::Truncated(Layer::Ipv4))?;
        let [version_length, dscp_ecn, t0, t1, i0, i1, f0, f1, ttl, protocol, _, _, addresses @ ..] = *head;
        let [s0, s1, s2, s3, d0, d1, d2, d3] = addresses;
        if version_length >> 4 != 4 {
            return Err(PacketError::Unsupported(Layer::Ipv4));
        }
        let header_bytes = usize::from(version_length & 0xf) * 4;
        if header_bytes < HEADER_BYTES {
            return Err(PacketError::HeaderLength(Layer::Ipv4));
        }
        let fragment = u16::from_be_bytes([f0, f1]);
        if fragment & refused_fragments != 0 {
            return Err(PacketError::Fragment(Layer::Ipv4));
        }
        let total_bytes = u16::from_be_bytes([t0, t1]);
        #[expect(clippy::cast_possible_truncation, reason = "a header has at most 60 bytes")]
        let header = Header {
            source: Ipv4Addr::new(s0, s1, s2, s3),
            target: Ipv4Addr::new(d0, d1, d2, d3),
            protocol,
            ttl,
            dscp_ecn,
            ident: u16::from_be_bytes([i0, i1]),
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            payload_bytes: total_bytes
                .checked_sub(header_bytes as u16)
                .ok_or(PacketError::Length(Layer::Ipv4))?,
        };
        Ok((header, header_bytes))
    }

    /// Emits the header with its checksum. The total length saturates above 65,515 payload bytes, which no packet can
    /// have.
    #[inline]
    pub fn emit(&self, out: &mut [u8; HEADER_BYTES]) {
        let [t0, t1] = self.payload_bytes.saturating_add(HEADER_BYTES_U16).to_be_bytes();
        let [i0, i1] = self.ident.to_be_bytes();
        let [f0, f1] = if self.dont_fragment { DONT_FRAGMENT.to_be_bytes() } else { [0; 2] };
        let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (self.source.octets(), self.target.octets());
        let (dscp_ecn, ttl, protocol) = (self.dscp_ecn, self.ttl, self.protocol);
        let mut head =
            [0x45, dscp_ecn, t0, t1, i0, i1, f0, f1, ttl, protocol, 0, 0, s0, s1, s2, s3, d0, d1, d2, d3];
        [head[10], head[11]] = Sum::ZERO.add_array(&head).finish().to_be_bytes();
        *out = head;
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// A header whose checksum, 0xb861, was computed by hand.
    const HEAD: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0,
        0xa8, 0x00, 0xc7,
    ];

    fn packet() -> Vec<u8> {
        let mut packet = Vec::from(HEAD);
        packet.resize(0x73, 0xab);
        packet
    }

    /// [`packet`] with `value` at `offset`, and the header checksum that fits.
    fn packet_with(offset: usize, value: u8) -> Vec<u8> {
        let mut packet = packet();
        packet[offset] = value;
        packet[10..12].fill(0);
        let check = Sum::ZERO.add_bytes(&packet[..20]).finish();
        packet[10..12].copy_from_slice(&check.to_be_bytes());
        packet
    }

    #[test]
    fn a_known_packet_parses_and_its_header_is_emitted_unchanged() {
        let padded = [packet().as_slice(), &[0; 9]].concat();
        let (header, header_bytes, payload) = Header::parse(&padded).unwrap();
        let (source, target) = (Ipv4Addr::new(192, 168, 0, 1), Ipv4Addr::new(192, 168, 0, 199));
        let expected = Header::new(source, target, PROTOCOL_UDP, 95);
        assert_eq!((header, header_bytes), (expected, 20));
        assert_eq!(payload, [0xab; 95], "the payload should not include the padding");
        let mut out = [0xee; 20];
        header.emit(&mut out);
        assert_eq!(out, HEAD);
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_detected() {
        for offset in 0..20 {
            for bit in 0..8 {
                let mut packet = packet();
                packet[offset] ^= 1 << bit;
                assert!(
                    Header::parse(&packet).is_err(),
                    "a header with bit {bit} of byte {offset} flipped should be rejected"
                );
            }
        }
        let mut packet = packet();
        packet[10] ^= 0x80;
        assert_eq!(Header::parse(&packet), Err(PacketError::Checksum(Layer::Ipv4)));
    }

    #[test]
    fn malformed_headers_are_rejected() {
        for (packet, error) in [
            (packet_with(0, 0x65), PacketError::Unsupported(Layer::Ipv4)),
            (packet_with(0, 0x44), PacketError::HeaderLength(Layer::Ipv4)),
            (packet_with(3, 19), PacketError::Length(Layer::Ipv4)),
            (packet_with(3, 0x74), PacketError::Truncated(Layer::Ipv4)),
            (packet_with(6, 0x20), PacketError::Fragment(Layer::Ipv4)),
            (packet_with(7, 0x01), PacketError::Fragment(Layer::Ipv4)),
        ] {
            assert_eq!(Header::parse(&packet), Err(error));
        }
        for cut in 0..0x73 {
            assert_eq!(
                Header::parse(&packet()[..cut]),
                Err(PacketError::Truncated(Layer::Ipv4)),
                "a header cut to {cut} bytes should be rejected"
            );
        }
    }

    #[test]
    fn options_are_skipped() {
        let mut packet = packet();
        packet[0] = 0x46;
        packet.splice(20..20, [1, 1, 1, 0]);
        packet[3] += 4;
        packet[10..12].fill(0);
        let check = Sum::ZERO.add_bytes(&packet[..24]).finish();
        packet[10..12].copy_from_slice(&check.to_be_bytes());
        let (header, header_bytes, payload) = Header::parse(&packet).unwrap();
        assert_eq!((header.payload_bytes, header_bytes, payload.len()), (95, 24, 95));
    }

    #[test]
    fn a_quoted_packet_may_be_truncated_and_have_a_wrong_checksum() {
        let mut quoted = Vec::from(&packet()[..28]);
        quoted[8] -= 1;
        assert!(Header::parse(&quoted).is_err(), "the quoted packet should not be a valid packet");
        let (header, payload) = Header::parse_quoted(&quoted).unwrap();
        assert_eq!((header.ttl, header.payload_bytes, payload.len()), (63, 95, 8));
        assert_eq!(Header::parse_quoted(&quoted[..19]), Err(PacketError::Truncated(Layer::Ipv4)));
    }

    #[test]
    fn only_the_first_fragment_of_a_quoted_packet_is_accepted() {
        // The byte at 6: 0x40 is "don't fragment", 0x20 "more fragments", and the offset begins with its low bits.
        for more_fragments in [0x20, 0x60] {
            let quoted = packet_with(6, more_fragments);
            assert_eq!(Header::parse(&quoted), Err(PacketError::Fragment(Layer::Ipv4)));
            let (header, payload) = Header::parse_quoted(&quoted).unwrap();
            assert_eq!((header.protocol, payload), (PROTOCOL_UDP, &[0xab; 95][..]));
        }
        for (offset, value) in [(7, 0x01), (6, 0x41), (6, 0x21)] {
            let quoted = packet_with(offset, value);
            assert_eq!(
                Header::parse_quoted(&quoted),
                Err(PacketError::Fragment(Layer::Ipv4)),
                "a later fragment has no TCP header"
            );
        }
    }

    proptest! {
        #[test]
        fn every_header_survives_a_round_trip(
            source: u32, target: u32, protocol: u8, ttl: u8, dscp_ecn: u8, ident: u16, dont_fragment: bool,
            payload in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let (source, target) = (Ipv4Addr::from_bits(source), Ipv4Addr::from_bits(target));
            let payload_bytes = payload.len() as u16;
            let header =
                Header { source, target, protocol, ttl, dscp_ecn, ident, dont_fragment, payload_bytes };
            let mut out = [0; HEADER_BYTES];
            header.emit(&mut out);
            let packet = [&out[..], &payload].concat();
            prop_assert_eq!(Header::parse(&packet), Ok((header, HEADER_BYTES, payload.as_slice())));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..100),
            looks_valid: bool,
        ) {
            if looks_valid && bytes.len() >= 20 {
                bytes[0] = 0x40 | bytes[0] & 0xf;
                (bytes[2], bytes[6], bytes[7]) = (0, 0, 0);
            }
            let _ = Header::parse(&bytes);
            if let Ok((header, payload)) = Header::parse_quoted(&bytes) {
                prop_assert!(
                    payload.len() <= usize::from(header.payload_bytes),
                    "the payload should be within the header's length"
                );
            }
        }
    }
}
