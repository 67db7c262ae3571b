//! ICMP for IPv4 (RFC 792, RFC 1191).

use super::super::PacketError;
use super::super::checksum::Sum;
use super::{MESSAGE_BYTES_MIN, TYPE_TO_CHECKSUM_BYTES, emit_head, split_verified, two_numbers};

const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;

/// Code of [`Message::Unreachable`]: the network is unreachable.
pub const CODE_NETWORK: u8 = 0;
/// Code of [`Message::Unreachable`]: the host is unreachable.
pub const CODE_HOST: u8 = 1;
/// Code of [`Message::Unreachable`]: the host does not support the protocol.
pub const CODE_PROTOCOL: u8 = 2;
/// Code of [`Message::Unreachable`]: no program listens on the port.
pub const CODE_PORT: u8 = 3;
/// Code of [`Message::Unreachable`]: the packet exceeds the next hop's MTU and must not be fragmented.
pub const CODE_FRAGMENTATION_NEEDED: u8 = 4;

/// An ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
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
    /// A packet could not be delivered.
    Unreachable {
        /// The cause, for example [`CODE_PORT`].
        code: u8,
        /// With [`CODE_FRAGMENTATION_NEEDED`]: the next hop's MTU, in bytes; 0 from routers older than RFC 1191.
        next_hop_mtu: u16,
        /// The beginning of the undelivered packet: for [`parse_quoted`](super::super::ipv4::Header::parse_quoted).
        inner: &'a [u8],
    },
    /// A packet had no hops left, or some of its fragments did not arrive in time.
    TimeExceeded {
        /// 0: no hops left; 1: fragments missing.
        code: u8,
        /// The beginning of the undelivered packet.
        inner: &'a [u8],
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
    /// Parses the payload of an IPv4 packet.
    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, PacketError> {
        let (&[kind, code, _, _, a, b, c, d], rest) = split_verified(bytes, Sum::ZERO)?;
        let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Ok(match (kind, code) {
            (ECHO_REQUEST, 0) => Message::EchoRequest { ident: high, sequence: low, payload: rest },
            (ECHO_REPLY, 0) => Message::EchoReply { ident: high, sequence: low, payload: rest },
            (UNREACHABLE, code) => Message::Unreachable { code, next_hop_mtu: low, inner: rest },
            (TIME_EXCEEDED, code) => Message::TimeExceeded { code, inner: rest },
            (kind, code) => Message::Other { kind, code, body: &bytes[TYPE_TO_CHECKSUM_BYTES..] },
        })
    }

    /// Bytes of the message.
    pub fn bytes(&self) -> usize {
        match self {
            Message::EchoRequest { payload, .. } | Message::EchoReply { payload, .. } => {
                MESSAGE_BYTES_MIN + payload.len()
            }
            Message::Unreachable { inner, .. } | Message::TimeExceeded { inner, .. } => {
                MESSAGE_BYTES_MIN + inner.len()
            }
            Message::Other { body, .. } => TYPE_TO_CHECKSUM_BYTES + body.len(),
        }
    }

    /// Emits the message with its checksum; returns its length, [`Message::bytes`].
    ///
    /// # Panics
    /// If `out` is shorter than the message.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let out = &mut out[..self.bytes()];
        let (kind, code, four, rest) = match *self {
            Message::EchoRequest { ident, sequence, payload } => {
                (ECHO_REQUEST, 0, two_numbers(ident, sequence), payload)
            }
            Message::EchoReply { ident, sequence, payload } => {
                (ECHO_REPLY, 0, two_numbers(ident, sequence), payload)
            }
            Message::Unreachable { code, next_hop_mtu, inner } => {
                (UNREACHABLE, code, two_numbers(0, next_hop_mtu), inner)
            }
            Message::TimeExceeded { code, inner } => (TIME_EXCEEDED, code, [0; 4], inner),
            Message::Other { kind, code, body } => {
                out[TYPE_TO_CHECKSUM_BYTES..].copy_from_slice(body);
                emit_head(out, kind, code, Sum::ZERO);
                return out.len();
            }
        };
        out[TYPE_TO_CHECKSUM_BYTES..MESSAGE_BYTES_MIN].copy_from_slice(&four);
        out[MESSAGE_BYTES_MIN..].copy_from_slice(rest);
        emit_head(out, kind, code, Sum::ZERO);
        out.len()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::super::super::Layer;
    use super::*;

    fn emitted(message: &Message<'_>) -> Vec<u8> {
        let mut out = alloc::vec![0xee; message.bytes()];
        assert_eq!(message.emit(&mut out), out.len());
        out
    }

    #[test]
    fn a_known_echo_request_and_its_reply_have_these_bytes() {
        // 0x0800 + 1 + 2 + 0x6162 + 0x6364 + 0x6500 = 0x131c9, folded 0x31ca, its complement 0xce35.
        let request_bytes = [8, 0, 0xce, 0x35, 0, 1, 0, 2, b'a', b'b', b'c', b'd', b'e'];
        let request = Message::EchoRequest { ident: 1, sequence: 2, payload: b"abcde" };
        assert_eq!(Message::parse(&request_bytes), Ok(request));
        assert_eq!(emitted(&request), request_bytes);
        let reply = Message::EchoReply { ident: 1, sequence: 2, payload: b"abcde" };
        assert_eq!(emitted(&reply)[..8], [0, 0, 0xd6, 0x35, 0, 1, 0, 2]);
        assert_eq!(Message::parse(&emitted(&reply)), Ok(reply));
    }

    #[test]
    fn messages_of_routers_survive_a_round_trip() {
        let fragmentation_needed =
            Message::Unreachable { code: CODE_FRAGMENTATION_NEEDED, next_hop_mtu: 1400, inner: &[0x45; 28] };
        let bytes = emitted(&fragmentation_needed);
        assert_eq!((bytes.len(), bytes[0], bytes[1], &bytes[4..8]), (36, 3, 4, &[0, 0, 5, 120][..]));
        let time_exceeded = Message::TimeExceeded { code: 0, inner: &[0x45; 28] };
        let redirect = Message::Other { kind: 5, code: 1, body: &[10, 0, 0, 1, 0x45] };
        for message in [fragmentation_needed, time_exceeded, redirect] {
            assert_eq!(Message::parse(&emitted(&message)), Ok(message));
        }
    }

    #[test]
    fn altered_or_truncated_messages_are_rejected() {
        let bytes = emitted(&Message::EchoRequest { ident: 1, sequence: 2, payload: b"abcde" });
        for offset in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[offset] ^= 4;
            assert_eq!(
                Message::parse(&damaged),
                Err(PacketError::Checksum(Layer::Icmp)),
                "a message with byte {offset} altered should be rejected"
            );
        }
        for cut in 0..8 {
            assert_eq!(Message::parse(&bytes[..cut]), Err(PacketError::Truncated(Layer::Icmp)));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic_and_valid_ones_survive_a_round_trip(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..60), kind in 0..16_u8, code in 0..2_u8,
        ) {
            let _ = Message::parse(&bytes);
            if bytes.len() >= MESSAGE_BYTES_MIN {
                emit_head(&mut bytes, kind, code, Sum::ZERO);
                let message = Message::parse(&bytes).unwrap();
                let emitted_again = emitted(&message);
                prop_assert_eq!(emitted_again.len(), bytes.len());
                prop_assert_eq!(Message::parse(&emitted_again), Ok(message), "only unused bytes should differ");
            }
        }
    }
}
