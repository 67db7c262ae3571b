//! Packets with and without an Ethernet header: the agent forwards frames, and sockets take packets.

use std::net::SocketAddr;

use spillway_wire::packet::ethernet::{self, Mac};

/// A packet as a frame. The Ethernet addresses are zero: the receiver of a forwarded frame writes its own.
pub(crate) fn framed(packet: &[u8], local: SocketAddr) -> Vec<u8> {
    let kind = if local.is_ipv4() { ethernet::KIND_IPV4 } else { ethernet::KIND_IPV6 };
    let mut frame = vec![0; ethernet::HEADER_BYTES];
    if let Some(header) = frame.first_chunk_mut() {
        ethernet::Header { target: Mac::ZERO, source: Mac::ZERO, kind }.emit(header);
    }
    frame.extend_from_slice(packet);
    frame
}

/// The packet in a frame.
pub(crate) fn packet_of(frame: &[u8]) -> Option<&[u8]> {
    frame.get(ethernet::HEADER_BYTES..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_the_kind_of_its_packet() {
        for (local, kind) in [("10.0.0.1:80", [8, 0]), ("[2001:db8::1]:80", [0x86, 0xdd])] {
            let frame = framed(b"packet", local.parse().unwrap());
            assert_eq!(frame[12..14], kind);
            assert_eq!(packet_of(&frame), Some(&b"packet"[..]));
        }
        assert_eq!(packet_of(b"short"), None);
    }
}
