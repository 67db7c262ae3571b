//! ICMP for IPv4 (RFC 792, RFC 1191).

use super::super::PacketError;
use super::super::checksum::Sum;
use super::{BYTES_MIN, HEAD_BYTES, open, pair, seal};

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
        /// The beginning of that packet: for [`parse_quoted`](super::super::ipv4::Header::parse_quoted).
        inner: &'a [u8],
    },
    /// A packet had no hops left, or some of its fragments did not arrive in time.
    TimeExceeded {
        /// 0: no hops left; 1: fragments missing.
        code: u8,
        /// The beginning of that packet.
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
        let (&[kind, code, _, _, a, b, c, d], rest) = open(bytes, Sum::ZERO)?;
        let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Ok(match (kind, code) {
            (ECHO_REQUEST, 0) => Message::EchoRequest { ident: high, sequence: low, payload: rest },
            (ECHO_REPLY, 0) => Message::EchoReply { ident: high, sequence: low, payload: rest },
            (UNREACHABLE, code) => Message::Unreachable { code, next_hop_mtu: low, inner: rest },
            (TIME_EXCEEDED, code) => Message::TimeExceeded { code, inner: rest },
            (kind, code) => Message::Other { kind, code, body: &bytes[HEAD_BYTES..] },
        })
    }

    /// Bytes of the message.
    pub fn bytes(&self) -> usize {
        match self {
            Message::EchoRequest { payload, .. } | Message::EchoReply { payload, .. } => {
                BYTES_MIN + payload.len()
            }
            Message::Unreachable { inner, .. } | Message::TimeExceeded { inner, .. } => {
                BYTES_MIN + inner.len()
            }
            Message::Other { body, .. } => HEAD_BYTES + body.len(),
        }
    }

    /// Emits the message with its checksum; returns its length, [`Message::bytes`].
    ///
    /// # Panics
    /// If `out` is shorter than that.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let out = &mut out[..self.bytes()];
        let (kind, code, four, rest) = match *self {
            Message::EchoRequest { ident, sequence, payload } => {
                (ECHO_REQUEST, 0, pair(ident, sequence), payload)
            }
            Message::EchoReply { ident, sequence, payload } => {
                (ECHO_REPLY, 0, pair(ident, sequence), payload)
            }
            Message::Unreachable { code, next_hop_mtu, inner } => {
                (UNREACHABLE, code, pair(0, next_hop_mtu), inner)
            }
            Message::TimeExceeded { code, inner } => (TIME_EXCEEDED, code, [0; 4], inner),
            Message::Other { kind, code, body } => {
                out[HEAD_BYTES..].copy_from_slice(body);
                seal(out, kind, code, Sum::ZERO);
                return out.len();
            }
        };
        out[HEAD_BYTES..BYTES_MIN].copy_from_slice(&four);
        out[BYTES_MIN..].copy_from_slice(rest);
        seal(out, kind, code, Sum::ZERO);
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
    fn a_question_by_hand_and_its_answer() {
        // 0x0800 + 1 + 2 + 0x6162 + 0x6364 + 0x6500 = 0x131c9, folded 0x31ca, its complement 0xce35.
        let question = [8, 0, 0xce, 0x35, 0, 1, 0, 2, b'a', b'b', b'c', b'd', b'e'];
        let asked = Message::EchoRequest { ident: 1, sequence: 2, payload: b"abcde" };
        assert_eq!(Message::parse(&question), Ok(asked));
        assert_eq!(emitted(&asked), question);
        let answer = Message::EchoReply { ident: 1, sequence: 2, payload: b"abcde" };
        assert_eq!(emitted(&answer)[..8], [0, 0, 0xd6, 0x35, 0, 1, 0, 2]);
        assert_eq!(Message::parse(&emitted(&answer)), Ok(answer));
    }

    #[test]
    fn what_routers_say() {
        let too_large =
            Message::Unreachable { code: CODE_FRAGMENTATION_NEEDED, next_hop_mtu: 1400, inner: &[0x45; 28] };
        let bytes = emitted(&too_large);
        assert_eq!((bytes.len(), bytes[0], bytes[1], &bytes[4..8]), (36, 3, 4, &[0, 0, 5, 120][..]));
        let late = Message::TimeExceeded { code: 0, inner: &[0x45; 28] };
        let redirect = Message::Other { kind: 5, code: 1, body: &[10, 0, 0, 1, 0x45] };
        for message in [too_large, late, redirect] {
            assert_eq!(Message::parse(&emitted(&message)), Ok(message));
        }
    }

    #[test]
    fn damage_is_noticed() {
        let bytes = emitted(&Message::EchoRequest { ident: 1, sequence: 2, payload: b"abcde" });
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 4;
            assert_eq!(Message::parse(&damaged), Err(PacketError::Checksum(Layer::Icmp)), "byte {place}");
        }
        for cut in 0..8 {
            assert_eq!(Message::parse(&bytes[..cut]), Err(PacketError::Truncated(Layer::Icmp)));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..60), kind in 0..16_u8, code in 0..2_u8,
        ) {
            let _ = Message::parse(&bytes);
            if bytes.len() >= BYTES_MIN {
                seal(&mut bytes, kind, code, Sum::ZERO);
                let message = Message::parse(&bytes).unwrap();
                let again = emitted(&message);
                prop_assert_eq!(again.len(), bytes.len());
                prop_assert_eq!(Message::parse(&again), Ok(message), "unused bytes are written as zero");
            }
        }
    }
}
