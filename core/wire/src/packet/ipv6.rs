//! IPv6 headers (RFC 8200). Extension headers with options are skipped if the options permit it, and so are routing
//! headers whose route ends here; all other extension headers, such as those of fragments, are refused.

use core::net::Ipv6Addr;

use super::{Layer, PacketError};

/// Bytes of a header without extension headers.
pub const HEADER_BYTES: usize = 40;

/// Protocol number of ICMP for IPv6.
pub const PROTOCOL_ICMP: u8 = 58;

/// Hop limit of a new packet: the default of hosts (RFC 4861 §6.3.2, RFC 1700).
const HOP_LIMIT_DEFAULT: u8 = 64;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const ENCRYPTED: u8 = 50;
const AUTHENTICATED: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

/// Hop-by-hop options and a routing header occur once, destination options at most twice (RFC 8200 §4.1).
const EXTENSIONS_MAX: usize = 4;

/// The Pad1 option: one byte of padding, without a length.
const PAD_1: u8 = 0;
/// The bits of an option's kind that specify the treatment of an unknown option; 0: skip the option (RFC 8200 §4.2).
const OPTION_ACTION_MASK: u8 = 0xc0;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's address.
    pub source: Ipv6Addr,
    /// The receiver's address.
    pub target: Ipv6Addr,
    /// The protocol of the payload, after the extension headers.
    pub protocol: u8,
    /// Remaining hops.
    pub hop_limit: u8,
    /// Differentiated services, and congestion notification in the two lowest bits.
    pub dscp_ecn: u8,
    /// The flow label, 20 bits (RFC 6437).
    pub flow_label: u32,
    /// Bytes after the extension headers.
    pub payload_bytes: u16,
}

impl Header {
    /// The header of a new packet without extension headers.
    #[inline]
    pub fn new(source: Ipv6Addr, target: Ipv6Addr, protocol: u8, payload_bytes: u16) -> Header {
        Header {
            source,
            target,
            protocol,
            hop_limit: HOP_LIMIT_DEFAULT,
            dscp_ecn: 0,
            flow_label: 0,
            payload_bytes,
        }
    }

    /// Parses a packet. Returns the header, its length in bytes with extension headers, and the payload without
    /// padding.
    pub fn parse(packet: &[u8]) -> Result<(Header, usize, &[u8]), PacketError> {
        let (mut header, rest) = Header::parse_fixed_part(packet)?;
        let mut payload =
            rest.get(..usize::from(header.payload_bytes)).ok_or(PacketError::Truncated(Layer::Ipv6))?;
        let extended_bytes = payload.len();
        let mut extensions = 0;
        loop {
            match header.protocol {
                HOP_BY_HOP if extensions > 0 => return Err(PacketError::Extension(HOP_BY_HOP)),
                number @ (HOP_BY_HOP | DESTINATION_OPTIONS) if extensions < EXTENSIONS_MAX => {
                    (header.protocol, payload) = skip_options(number, payload)?;
                    extensions += 1;
                }
                ROUTING if extensions < EXTENSIONS_MAX => {
                    (header.protocol, payload) = skip_route(payload)?;
                    extensions += 1;
                }
                FRAGMENT => return Err(PacketError::Fragment(Layer::Ipv6)),
                number @ (ROUTING | ENCRYPTED | AUTHENTICATED | DESTINATION_OPTIONS | MOBILITY
                | HOST_IDENTITY | SHIM6) => return Err(PacketError::Extension(number)),
                _ => break,
            }
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most the original payload length, which has 16 bits"
        )]
        let payload_bytes = payload.len() as u16;
        header.payload_bytes = payload_bytes;
        Ok((header, HEADER_BYTES + extended_bytes - payload.len(), payload))
    }

    /// Parses a packet that an ICMP message quotes. Returns the header and the quoted part of its payload. Extension
    /// headers are not skipped: `protocol` is the number of the first one, if any.
    pub fn parse_quoted(packet: &[u8]) -> Result<(Header, &[u8]), PacketError> {
        let (header, rest) = Header::parse_fixed_part(packet)?;
        Ok((header, &rest[..rest.len().min(usize::from(header.payload_bytes))]))
    }

    fn parse_fixed_part(packet: &[u8]) -> Result<(Header, &[u8]), PacketError> {
        let (head, rest) =
            packet.split_first_chunk::<HEADER_BYTES>().ok_or(PacketError::Truncated(Layer::Ipv6))?;
        let [v0, v1, v2, v3, l0, l1, protocol, hop_limit, addresses @ ..] = *head;
        let version_class_flow = u32::from_be_bytes([v0, v1, v2, v3]);
        if version_class_flow >> 28 != 6 {
            return Err(PacketError::Unsupported(Layer::Ipv6));
        }
        let address = |offset: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&addresses[offset..offset + 16]);
            Ipv6Addr::from(octets)
        };
        let header = Header {
            source: address(0),
            target: address(16),
            protocol,
            hop_limit,
            dscp_ecn: (version_class_flow >> 20 & 0xff) as u8,
            flow_label: version_class_flow & 0xf_ffff,
            payload_bytes: u16::from_be_bytes([l0, l1]),
        };
        Ok((header, rest))
    }

    /// Emits the header.
    pub fn emit(&self, out: &mut [u8; HEADER_BYTES]) {
        let version_class_flow = 6 << 28 | u32::from(self.dscp_ecn) << 20 | self.flow_label & 0xf_ffff;
        out[..4].copy_from_slice(&version_class_flow.to_be_bytes());
        out[4..6].copy_from_slice(&self.payload_bytes.to_be_bytes());
        out[6] = self.protocol;
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&self.source.octets());
        out[24..].copy_from_slice(&self.target.octets());
    }
}

/// Splits an extension header from the bytes after it. Returns the number of the next header, the contents after the
/// two bytes that each extension header begins with (at least six), and the bytes after the extension header.
fn split_extension(bytes: &[u8]) -> Result<(u8, &[u8], &[u8]), PacketError> {
    let truncated = PacketError::Truncated(Layer::Ipv6);
    let [next, length_in_eights, ..] = *bytes else { return Err(truncated) };
    let (extension, after) =
        bytes.split_at_checked((usize::from(length_in_eights) + 1) * 8).ok_or(truncated)?;
    Ok((next, &extension[2..], after))
}

/// Skips a routing header of any type if no segments are left. Otherwise this host would have to forward the packet, or
/// to discard it (RFC 8200 §4.4, RFC 5095 §3). Returns the number of the next header, and the bytes after this one.
fn skip_route(bytes: &[u8]) -> Result<(u8, &[u8]), PacketError> {
    match split_extension(bytes)? {
        (next, [_, 0, ..], after) => Ok((next, after)),
        _ => Err(PacketError::Extension(ROUTING)),
    }
}

/// Skips an extension header of options. Returns the number of the next header, and the bytes after this one.
fn skip_options(number: u8, bytes: &[u8]) -> Result<(u8, &[u8]), PacketError> {
    let (next, mut options, after) = split_extension(bytes)?;
    loop {
        options = match *options {
            [] => return Ok((next, after)),
            [PAD_1, ref rest @ ..] => rest,
            [kind, ..] if kind & OPTION_ACTION_MASK != 0 => {
                return Err(PacketError::Option(Layer::Ipv6, kind));
            }
            [_, length, ref rest @ ..] => {
                rest.get(usize::from(length)..).ok_or(PacketError::Extension(number))?
            }
            [_] => return Err(PacketError::Extension(number)),
        };
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn header(protocol: u8, payload_bytes: u16) -> Header {
        Header {
            source: "2001:db8::1".parse().unwrap(),
            target: "2001:db8::2".parse().unwrap(),
            protocol,
            hop_limit: 64,
            dscp_ecn: 0xb8,
            flow_label: 0xa_bcde,
            payload_bytes,
        }
    }

    fn packet(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = [0xee; HEADER_BYTES];
        header(protocol, payload.len() as u16).emit(&mut out);
        [&out[..], payload].concat()
    }

    #[test]
    fn a_packet_has_the_bytes_of_rfc_8200_and_padding_is_ignored() {
        let packet = packet(6, b"segment");
        assert_eq!(packet[..8], [0x6b, 0x8a, 0xbc, 0xde, 0, 7, 6, 64]);
        assert_eq!(packet[8..12], [0x20, 0x01, 0x0d, 0xb8]);
        let padded = [packet.as_slice(), &[0; 3]].concat();
        assert_eq!(Header::parse(&padded), Ok((header(6, 7), 40, &b"segment"[..])));
        for cut in 0..packet.len() {
            assert_eq!(Header::parse(&packet[..cut]), Err(PacketError::Truncated(Layer::Ipv6)));
        }
        let mut other = packet;
        other[0] = 0x45;
        assert_eq!(Header::parse(&other), Err(PacketError::Unsupported(Layer::Ipv6)));
    }

    #[test]
    fn options_headers_with_skippable_options_are_skipped() {
        // Hop-by-hop options: router alert and two Pad1; destination options: 16 bytes in all, with Pad1 and PadN.
        let hop_by_hop: &[u8] = &[60, 0, 5, 2, 0, 0, 0, 0];
        let destination_options: &[u8] = &[6, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let packet = packet(0, &[hop_by_hop, destination_options, b"segment"].concat());
        assert_eq!(Header::parse(&packet), Ok((header(6, 7), 64, &b"segment"[..])));
    }

    #[test]
    fn routing_headers_are_skipped_if_no_segments_are_left() {
        // Type 0 with two addresses, type 4 (segment routing), and an unknown type.
        for (kind, length_in_eights) in [(0, 4), (4, 2), (253, 0)] {
            let route = |segments_left: u8| {
                let mut route = alloc::vec![6, length_in_eights, kind, segments_left];
                route.resize((usize::from(length_in_eights) + 1) * 8, 0xaa);
                [route.as_slice(), b"segment"].concat()
            };
            let header_bytes = 48 + 8 * usize::from(length_in_eights);
            let parsed = Ok((header(6, 7), header_bytes, &b"segment"[..]));
            assert_eq!(Header::parse(&packet(43, &route(0))), parsed);
            for segments_left in [1, 2, 255] {
                let refused = Header::parse(&packet(43, &route(segments_left))).map(|_| ());
                assert_eq!(refused, Err(PacketError::Extension(43)));
            }
        }
    }

    #[test]
    fn unsupported_misplaced_and_repeated_extension_headers_are_rejected() {
        let padding_only = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
        for number in [43, 50, 51, 135, 139, 140] {
            assert_eq!(Header::parse(&packet(number, &padding_only(6))), Err(PacketError::Extension(number)));
        }
        assert_eq!(Header::parse(&packet(44, &padding_only(6))), Err(PacketError::Fragment(Layer::Ipv6)));
        let misplaced = packet(60, &[padding_only(0), padding_only(6)].concat());
        assert_eq!(
            Header::parse(&misplaced),
            Err(PacketError::Extension(0)),
            "hop-by-hop options should come first"
        );
        let chain = |length: usize| {
            let mut extensions = padding_only(60).repeat(length - 1);
            extensions.extend(padding_only(6));
            packet(0, &extensions)
        };
        assert!(
            Header::parse(&chain(EXTENSIONS_MAX)).is_ok(),
            "the maximum of extension headers should be accepted"
        );
        assert_eq!(Header::parse(&chain(EXTENSIONS_MAX + 1)), Err(PacketError::Extension(60)));
    }

    #[test]
    fn malformed_options_and_options_that_must_not_be_skipped_are_rejected() {
        for kind in [0x40, 0x80, 0xc2] {
            let packet = packet(60, &[6, 0, kind, 4, 0, 0, 0, 0]);
            assert_eq!(Header::parse(&packet), Err(PacketError::Option(Layer::Ipv6, kind)));
        }
        for option in [[1, 5, 0, 0, 0, 0], [1, 3, 0, 0, 0, 1]] {
            let packet = packet(60, &[&[6, 0][..], &option].concat());
            assert_eq!(
                Header::parse(&packet),
                Err(PacketError::Extension(60)),
                "an option that exceeds its extension header should be rejected"
            );
        }
        let truncated = Err(PacketError::Truncated(Layer::Ipv6));
        assert_eq!(Header::parse(&packet(60, &[6, 1, 1, 4, 0, 0, 0, 0])), truncated);
        assert_eq!(Header::parse(&packet(60, &[6])), truncated);
    }

    #[test]
    fn a_quoted_packet_may_be_truncated() {
        let packet = packet(6, &[7; 100]);
        let (quoted, rest) = Header::parse_quoted(&packet[..48]).unwrap();
        assert_eq!((quoted, rest), (header(6, 100), &[7; 8][..]));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            headers in proptest::collection::vec((prop::sample::select(alloc::vec![0_u8, 6, 43, 60]), 0..3_u8), 0..5),
        ) {
            let _ = (Header::parse(&bytes), Header::parse_quoted(&bytes));
            let mut extensions = Vec::new();
            for (next, length_in_eights) in headers {
                extensions.extend([next, length_in_eights]);
                extensions.resize(extensions.len() + 6 + 8 * usize::from(length_in_eights), 0);
            }
            extensions.extend(bytes);
            for first_extension in [0, 60] {
                let packet = packet(first_extension, &extensions);
                if let Ok((header, header_bytes, payload)) = Header::parse(&packet) {
                    prop_assert_eq!(header_bytes + payload.len(), packet.len());
                    prop_assert_eq!(usize::from(header.payload_bytes), payload.len());
                }
            }
        }
    }
}
