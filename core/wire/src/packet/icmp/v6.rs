//! ICMP for IPv6 (RFC 4443), with those messages of neighbour discovery (RFC 4861) that hosts exchange.

use core::net::Ipv6Addr;

use super::super::checksum::Sum;
use super::super::ethernet::Mac;
use super::super::{Layer, PacketError};
use super::{MESSAGE_BYTES_MIN, TYPE_TO_CHECKSUM_BYTES, emit_head, split, split_verified, two_numbers};

const UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// Code of [`Message::Unreachable`]: no program listens on the port.
pub const CODE_PORT: u8 = 4;

/// The required hop limit of neighbour discovery: it proves that no router has forwarded the packet (RFC 4861 §7.1).
pub const NEIGHBOUR_HOP_LIMIT: u8 = 255;

const OPTION_SOURCE_MAC: u8 = 1;
const OPTION_TARGET_MAC: u8 = 2;
/// Bytes of an option with an Ethernet address.
const MAC_OPTION_BYTES: usize = 8;

const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDES: u8 = 0x20;

/// An ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A packet could not be delivered.
    Unreachable {
        /// The cause, for example [`CODE_PORT`].
        code: u8,
        /// The beginning of the undelivered packet.
        inner: &'a [u8],
    },
    /// A packet exceeds the next hop's MTU.
    PacketTooBig {
        /// The MTU, in bytes.
        mtu: u32,
        /// The beginning of the undelivered packet.
        inner: &'a [u8],
    },
    /// A packet had no hops left, or some of its fragments did not arrive in time.
    TimeExceeded {
        /// 0: no hops left; 1: fragments missing.
        code: u8,
        /// The beginning of the undelivered packet.
        inner: &'a [u8],
    },
    /// An echo request.
    EchoRequest {
        /// Identifies the sender of the request.
        ident: u16,
        /// Number of the request.
        sequence: u16,
        /// Data that the reply returns.
        payload: &'a [u8],
    },
    /// An echo reply; its fields equal those of the request.
    EchoReply {
        /// Identifies the sender of the request.
        ident: u16,
        /// Number of the request.
        sequence: u16,
        /// Data of the request.
        payload: &'a [u8],
    },
    /// Requests the Ethernet address of an IPv6 address.
    NeighbourSolicitation {
        /// The IPv6 address; not a multicast address.
        target: Ipv6Addr,
        /// Ethernet address of the sender.
        source_mac: Option<Mac>,
    },
    /// Announces the Ethernet address of an IPv6 address.
    NeighbourAdvertisement {
        /// The IPv6 address; not a multicast address.
        target: Ipv6Addr,
        /// Ethernet address of the target.
        target_mac: Option<Mac>,
        /// The sender is a router.
        router: bool,
        /// The advertisement answers a solicitation.
        solicited: bool,
        /// The receiver shall replace an address that it has cached.
        overrides: bool,
    },
    /// A message of another type.
    Other {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
        /// The bytes after the checksum.
        body: &'a [u8],
    },
}

impl<'a> Message<'a> {
    /// Parses the payload of an IPv6 packet. `pseudo` is the pseudo-header's sum. For neighbour discovery the caller
    /// must check [`NEIGHBOUR_HOP_LIMIT`].
    pub fn parse(bytes: &'a [u8], pseudo: Sum) -> Result<Message<'a>, PacketError> {
        Message::parse_parts(bytes, split_verified(bytes, pseudo)?)
    }

    /// Parses a message as a raw socket receives it: without the IPv6 header, and after the kernel has verified the
    /// checksum (RFC 3542 §3.1).
    pub fn parse_verified(bytes: &'a [u8]) -> Result<Message<'a>, PacketError> {
        Message::parse_parts(bytes, split(bytes)?)
    }

    fn parse_parts(
        bytes: &'a [u8],
        (&[kind, code, _, _, a, b, c, d], rest): (&[u8; MESSAGE_BYTES_MIN], &'a [u8]),
    ) -> Result<Message<'a>, PacketError> {
        let (ident, sequence) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Ok(match (kind, code) {
            (UNREACHABLE, code) => Message::Unreachable { code, inner: rest },
            (PACKET_TOO_BIG, _) => {
                Message::PacketTooBig { mtu: u32::from_be_bytes([a, b, c, d]), inner: rest }
            }
            (TIME_EXCEEDED, code) => Message::TimeExceeded { code, inner: rest },
            (ECHO_REQUEST, 0) => Message::EchoRequest { ident, sequence, payload: rest },
            (ECHO_REPLY, 0) => Message::EchoReply { ident, sequence, payload: rest },
            (SOLICITATION, 0) => {
                let (target, source_mac) = parse_neighbour(rest, OPTION_SOURCE_MAC)?;
                Message::NeighbourSolicitation { target, source_mac }
            }
            (ADVERTISEMENT, 0) => {
                let (target, target_mac) = parse_neighbour(rest, OPTION_TARGET_MAC)?;
                Message::NeighbourAdvertisement {
                    target,
                    target_mac,
                    router: a & ROUTER != 0,
                    solicited: a & SOLICITED != 0,
                    overrides: a & OVERRIDES != 0,
                }
            }
            (kind, code) => Message::Other { kind, code, body: &bytes[TYPE_TO_CHECKSUM_BYTES..] },
        })
    }

    /// Bytes of the message.
    pub fn bytes(&self) -> usize {
        let neighbour_bytes =
            |mac: &Option<Mac>| MESSAGE_BYTES_MIN + 16 + mac.map_or(0, |_| MAC_OPTION_BYTES);
        match self {
            Message::Unreachable { inner, .. }
            | Message::PacketTooBig { inner, .. }
            | Message::TimeExceeded { inner, .. } => MESSAGE_BYTES_MIN + inner.len(),
            Message::EchoRequest { payload, .. } | Message::EchoReply { payload, .. } => {
                MESSAGE_BYTES_MIN + payload.len()
            }
            Message::NeighbourSolicitation { source_mac, .. } => neighbour_bytes(source_mac),
            Message::NeighbourAdvertisement { target_mac, .. } => neighbour_bytes(target_mac),
            Message::Other { body, .. } => TYPE_TO_CHECKSUM_BYTES + body.len(),
        }
    }

    /// Emits the message with its checksum; returns its length, [`Message::bytes`]. `pseudo` is the pseudo-header's sum
    /// for this length.
    ///
    /// # Panics
    /// If `out` is shorter than the message.
    pub fn emit(&self, out: &mut [u8], pseudo: Sum) -> usize {
        let out = &mut out[..self.bytes()];
        let (_, after) = out.split_at_mut(TYPE_TO_CHECKSUM_BYTES);
        let mut put = |four: [u8; 4], rest: &[u8]| {
            after[..4].copy_from_slice(&four);
            after[4..].copy_from_slice(rest);
        };
        let (kind, code) = match *self {
            Message::Unreachable { code, inner } => {
                put([0; 4], inner);
                (UNREACHABLE, code)
            }
            Message::PacketTooBig { mtu, inner } => {
                put(mtu.to_be_bytes(), inner);
                (PACKET_TOO_BIG, 0)
            }
            Message::TimeExceeded { code, inner } => {
                put([0; 4], inner);
                (TIME_EXCEEDED, code)
            }
            Message::EchoRequest { ident, sequence, payload } => {
                put(two_numbers(ident, sequence), payload);
                (ECHO_REQUEST, 0)
            }
            Message::EchoReply { ident, sequence, payload } => {
                put(two_numbers(ident, sequence), payload);
                (ECHO_REPLY, 0)
            }
            Message::NeighbourSolicitation { target, source_mac } => {
                emit_neighbour(after, 0, target, OPTION_SOURCE_MAC, source_mac);
                (SOLICITATION, 0)
            }
            Message::NeighbourAdvertisement { target, target_mac, router, solicited, overrides } => {
                let bit = |set: bool, bit: u8| if set { bit } else { 0 };
                let bits = bit(router, ROUTER) | bit(solicited, SOLICITED) | bit(overrides, OVERRIDES);
                emit_neighbour(after, bits, target, OPTION_TARGET_MAC, target_mac);
                (ADVERTISEMENT, 0)
            }
            Message::Other { kind, code, body } => {
                after.copy_from_slice(body);
                (kind, code)
            }
        };
        emit_head(out, kind, code, pseudo);
        out.len()
    }
}

/// The solicited-node multicast address of an address (RFC 4291 §2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// Parses the target, and the first Ethernet address in an option of `option_kind`. Options of length 0 are errors (RFC
/// 4861 §7.1.1).
fn parse_neighbour(bytes: &[u8], option_kind: u8) -> Result<(Ipv6Addr, Option<Mac>), PacketError> {
    let (target, mut rest) = bytes.split_first_chunk::<16>().ok_or(PacketError::Truncated(Layer::Icmp))?;
    let target = Ipv6Addr::from(*target);
    if target.is_multicast() {
        return Err(PacketError::Field(Layer::Icmp));
    }
    let mut mac = None;
    while let [kind, length_in_eights, ..] = *rest {
        if length_in_eights == 0 {
            return Err(PacketError::Option(Layer::Icmp, kind));
        }
        let (option, after) = rest
            .split_at_checked(usize::from(length_in_eights) * 8)
            .ok_or(PacketError::Truncated(Layer::Icmp))?;
        if let [_, 1, a, b, c, d, e, f] = *option
            && kind == option_kind
            && mac.is_none()
        {
            mac = Some(Mac([a, b, c, d, e, f]));
        }
        rest = after;
    }
    if rest.is_empty() { Ok((target, mac)) } else { Err(PacketError::Truncated(Layer::Icmp)) }
}

fn emit_neighbour(after: &mut [u8], bits: u8, target: Ipv6Addr, option: u8, mac: Option<Mac>) {
    after[..4].copy_from_slice(&[bits, 0, 0, 0]);
    after[4..20].copy_from_slice(&target.octets());
    if let Some(Mac(mac)) = mac {
        after[20..22].copy_from_slice(&[option, 1]);
        after[22..28].copy_from_slice(&mac);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::super::super::checksum::pseudo_v6;
    use super::super::super::ipv6::PROTOCOL_ICMP;
    use super::*;

    fn address(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    fn pseudo(bytes: usize) -> Sum {
        pseudo_v6(address("fe80::1"), address("fe80::2"), PROTOCOL_ICMP, bytes as u32)
    }

    fn emitted(message: &Message<'_>) -> Vec<u8> {
        let mut out = alloc::vec![0xee; message.bytes()];
        assert_eq!(message.emit(&mut out, pseudo(message.bytes())), out.len());
        out
    }

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

    #[test]
    fn every_message_survives_a_round_trip() {
        let target = address("fe80::2");
        for message in [
            Message::Unreachable { code: CODE_PORT, inner: &[0x60; 48] },
            Message::PacketTooBig { mtu: 1280, inner: &[0x60; 48] },
            Message::TimeExceeded { code: 1, inner: &[] },
            Message::EchoRequest { ident: 0x1234, sequence: 0xffff, payload: b"odd" },
            Message::EchoReply { ident: 0x1234, sequence: 0xffff, payload: b"odd" },
            Message::NeighbourSolicitation { target, source_mac: None },
            Message::NeighbourSolicitation { target, source_mac: Some(MAC) },
            Message::Other { kind: 143, code: 0, body: &[0, 0, 0, 1, 4] },
        ] {
            let bytes = emitted(&message);
            assert_eq!(Message::parse(&bytes, pseudo(bytes.len())), Ok(message));
        }
        for bits in 0..8 {
            let message = Message::NeighbourAdvertisement {
                target,
                target_mac: if bits == 0 { None } else { Some(MAC) },
                router: bits & 1 != 0,
                solicited: bits & 2 != 0,
                overrides: bits & 4 != 0,
            };
            let bytes = emitted(&message);
            assert_eq!(Message::parse(&bytes, pseudo(bytes.len())), Ok(message));
        }
    }

    #[test]
    fn a_solicitation_is_laid_out_as_in_rfc_4861() {
        let bytes =
            emitted(&Message::NeighbourSolicitation { target: address("fe80::2"), source_mac: Some(MAC) });
        assert_eq!((bytes[0], bytes[1], &bytes[4..8]), (135, 0, &[0; 4][..]));
        assert_eq!(bytes[8..24], address("fe80::2").octets());
        assert_eq!(bytes[24..], [1, 1, 2, 0, 0, 0, 0, 9]);
        let group = solicited_node(address("2001:db8::12:3456"));
        assert_eq!(group, address("ff02::1:ff12:3456"));
    }

    /// The Ethernet address in a solicitation with these options.
    fn mac_with_options(options: &[u8]) -> Result<Option<Mac>, PacketError> {
        let mut bytes = [&[0; 8][..], &address("fe80::2").octets(), options].concat();
        let pseudo = pseudo(bytes.len());
        emit_head(&mut bytes, SOLICITATION, 0, pseudo);
        match Message::parse(&bytes, pseudo)? {
            Message::NeighbourSolicitation { source_mac, .. } => Ok(source_mac),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_ethernet_address_counts_and_malformed_options_are_rejected() {
        let mac_option: &[u8] = &[1, 1, 2, 0, 0, 0, 0, 9];
        assert_eq!(mac_with_options(mac_option), Ok(Some(MAC)));
        let nonce_option: &[u8] = &[14, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        assert_eq!(
            mac_with_options(&[nonce_option, mac_option, &[1; 8]].concat()),
            Ok(Some(MAC)),
            "the first of two addresses should count"
        );
        assert_eq!(mac_with_options(nonce_option), Ok(None));
        assert_eq!(mac_with_options(&[1, 0, 0, 0, 0, 0, 0, 0]), Err(PacketError::Option(Layer::Icmp, 1)));
        assert_eq!(mac_with_options(&mac_option[..7]), Err(PacketError::Truncated(Layer::Icmp)));
        assert_eq!(mac_with_options(&[1]), Err(PacketError::Truncated(Layer::Icmp)));
    }

    #[test]
    fn group_targets_and_wrong_checksums_are_rejected() {
        let message = Message::NeighbourSolicitation { target: address("ff02::1"), source_mac: None };
        let bytes = emitted(&message);
        let parsed = Message::parse(&bytes, pseudo(bytes.len()));
        assert_eq!(parsed, Err(PacketError::Field(Layer::Icmp)), "a multicast target should be rejected");
        let bytes = emitted(&Message::EchoRequest { ident: 1, sequence: 2, payload: b"abcde" });
        for offset in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[offset] ^= 4;
            let parsed = Message::parse(&damaged, pseudo(bytes.len()));
            assert_eq!(
                parsed,
                Err(PacketError::Checksum(Layer::Icmp)),
                "a message with byte {offset} altered should be rejected"
            );
        }
        let parsed = Message::parse(&bytes, Sum::ZERO);
        assert_eq!(
            parsed,
            Err(PacketError::Checksum(Layer::Icmp)),
            "the checksum should cover the addresses"
        );
    }

    #[test]
    fn the_checksum_of_a_verified_message_is_not_compared() {
        let message = Message::PacketTooBig { mtu: 1300, inner: &[0x60; 48] };
        let mut bytes = emitted(&message);
        bytes[2] ^= 1;
        assert_eq!(Message::parse_verified(&bytes), Ok(message));
        assert_eq!(Message::parse_verified(&bytes[..7]), Err(PacketError::Truncated(Layer::Icmp)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic_and_valid_ones_survive_a_round_trip(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..80),
            kind in prop::sample::select(alloc::vec![1_u8, 2, 3, 128, 129, 135, 136, 137]), code in 0..2_u8,
        ) {
            let pseudo = pseudo(bytes.len());
            let _ = Message::parse(&bytes, pseudo);
            if bytes.len() >= MESSAGE_BYTES_MIN {
                emit_head(&mut bytes, kind, code, pseudo);
                if let Ok(message) = Message::parse(&bytes, pseudo) {
                    let emitted_again = emitted(&message);
                    prop_assert_eq!(Message::parse(&emitted_again, self::pseudo(emitted_again.len())), Ok(message));
                }
            }
        }
    }
}
