//! ARP for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use super::ethernet::{self, Mac};
use super::{Layer, PacketError};
use crate::cursor::Cursor;

/// Bytes of a packet.
pub const BYTES: usize = 28;
/// Bytes of a [frame](Packet::frame) with a packet, without the padding of short frames.
pub const FRAME_BYTES: usize = ethernet::HEADER_BYTES + BYTES;

/// Hardware type Ethernet, protocol type IPv4, and the lengths of their addresses.
const ETHERNET_AND_IPV4: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];

/// The operation of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Asks for the Ethernet address of the target's IPv4 address.
    Request,
    /// Answers a request with the sender's addresses.
    Reply,
}

/// An ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The operation.
    pub operation: Operation,
    /// Ethernet address of the sender.
    pub sender_mac: Mac,
    /// IPv4 address of the sender; unspecified in a probe (RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// Ethernet address of the target; ignored in a request.
    pub target_mac: Mac,
    /// IPv4 address of the target.
    pub target_ip: Ipv4Addr,
}

impl Packet {
    /// Parses a packet; padding after it is ignored.
    pub fn parse(bytes: &[u8]) -> Result<Packet, PacketError> {
        let mut cursor = Cursor::new(bytes);
        let truncated = |_| PacketError::Truncated(Layer::Arp);
        if cursor.array().map_err(truncated)? != ETHERNET_AND_IPV4 {
            return Err(PacketError::Unsupported(Layer::Arp));
        }
        let operation = match cursor.u16().map_err(truncated)? {
            1 => Operation::Request,
            2 => Operation::Reply,
            other => return Err(PacketError::Operation(Layer::Arp, other)),
        };
        Ok(Packet {
            operation,
            sender_mac: Mac(cursor.array().map_err(truncated)?),
            sender_ip: Ipv4Addr::from(cursor.array::<4>().map_err(truncated)?),
            target_mac: Mac(cursor.array().map_err(truncated)?),
            target_ip: Ipv4Addr::from(cursor.array::<4>().map_err(truncated)?),
        })
    }

    /// The packet in an Ethernet frame from its sender to `target`.
    pub fn frame(&self, target: Mac) -> [u8; FRAME_BYTES] {
        let mut frame = [0; FRAME_BYTES];
        let (head, body) = frame.split_at_mut(ethernet::HEADER_BYTES);
        if let (Some(head), Some(body)) = (head.first_chunk_mut(), body.first_chunk_mut()) {
            ethernet::Header { target, source: self.sender_mac, kind: ethernet::KIND_ARP }.emit(head);
            self.emit(body);
        }
        frame
    }

    /// Emits the packet.
    pub fn emit(&self, out: &mut [u8; BYTES]) {
        out[..6].copy_from_slice(&ETHERNET_AND_IPV4);
        out[6] = 0;
        out[7] = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        out[8..14].copy_from_slice(&self.sender_mac.0);
        out[14..18].copy_from_slice(&self.sender_ip.octets());
        out[18..24].copy_from_slice(&self.target_mac.0);
        out[24..].copy_from_slice(&self.target_ip.octets());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REQUEST: [u8; BYTES] =
        [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, 2];

    #[test]
    fn a_known_request_parses_and_is_emitted_unchanged() {
        let request = Packet::parse(&[&REQUEST[..], &[0; 18]].concat()).unwrap();
        let expected = Packet {
            operation: Operation::Request,
            sender_mac: Mac([2, 0, 0, 0, 0, 1]),
            sender_ip: Ipv4Addr::new(192, 0, 2, 1),
            target_mac: Mac::ZERO,
            target_ip: Ipv4Addr::new(192, 0, 2, 2),
        };
        assert_eq!(request, expected);
        let mut out = [0xee; BYTES];
        request.emit(&mut out);
        assert_eq!(out, REQUEST);
    }

    #[test]
    fn unknown_address_types_unknown_operations_and_short_packets_are_rejected() {
        for offset in 0..6 {
            let mut other = REQUEST;
            other[offset] ^= 2;
            assert_eq!(
                Packet::parse(&other),
                Err(PacketError::Unsupported(Layer::Arp)),
                "a packet with byte {offset} altered should be unsupported"
            );
        }
        let mut reverse_request = REQUEST;
        reverse_request[7] = 3; // RARP (RFC 903)
        assert_eq!(Packet::parse(&reverse_request), Err(PacketError::Operation(Layer::Arp, 3)));
        assert_eq!(Packet::parse(&REQUEST[..27]), Err(PacketError::Truncated(Layer::Arp)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..40), looks_valid: bool) {
            if looks_valid && bytes.len() > 8 {
                bytes[..6].copy_from_slice(&ETHERNET_AND_IPV4);
                (bytes[6], bytes[7]) = (0, bytes[7] % 4);
            }
            if let Ok(packet) = Packet::parse(&bytes) {
                let mut out = [0; BYTES];
                packet.emit(&mut out);
                prop_assert_eq!(&out[..], &bytes[..BYTES]);
            }
        }
    }
}
