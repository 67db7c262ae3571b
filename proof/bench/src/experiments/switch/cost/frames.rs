//! Frames that the program is run on, with correct checksums.

use std::net::SocketAddrV4;

use spillway_wire::packet::checksum::pseudo_v4;
use spillway_wire::packet::ethernet::{self, KIND_IPV4, Mac};
use spillway_wire::packet::tcp::{self, Flags};
use spillway_wire::packet::{PacketError, ipv4, udp};

/// Bytes before the payload of a [`datagram`].
pub const DATAGRAM_HEADER_BYTES: usize = ethernet::HEADER_BYTES + ipv4::HEADER_BYTES + udp::HEADER_BYTES;

/// One end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Ethernet address.
    pub mac: Mac,
    /// Address and port.
    pub address: SocketAddrV4,
}

/// A TCP segment of an established connection, with 64 bytes of data.
pub fn segment(source: End, target: End) -> Vec<u8> {
    const PAYLOAD: [u8; 64] = [0x5a; 64];
    let header = tcp::Header {
        source: source.address.port(),
        target: target.address.port(),
        seq: 0x0102_0304,
        ack: 0x0506_0708,
        flags: Flags(Flags::ACK.0 | Flags::PSH.0),
        window: 0x2000,
        ..tcp::Header::default()
    };
    let bytes = header.header_bytes() + PAYLOAD.len();
    let (mut frame, network) = headers(source, target, ipv4::PROTOCOL_TCP, bytes);
    frame[network + header.header_bytes()..].copy_from_slice(&PAYLOAD);
    let pseudo = pseudo_v4(*source.address.ip(), *target.address.ip(), ipv4::PROTOCOL_TCP, u32_of(bytes));
    header.emit(&mut frame[network..], PAYLOAD.len(), pseudo);
    frame
}

/// A UDP datagram.
pub fn datagram(source: End, target: End, payload: &[u8]) -> Vec<u8> {
    let bytes = udp::HEADER_BYTES + payload.len();
    let (mut frame, transport) = headers(source, target, ipv4::PROTOCOL_UDP, bytes);
    frame[transport + udp::HEADER_BYTES..].copy_from_slice(payload);
    let header = udp::Header {
        source: source.address.port(),
        target: target.address.port(),
        payload_bytes: u16_of(payload.len()),
    };
    let pseudo = pseudo_v4(*source.address.ip(), *target.address.ip(), ipv4::PROTOCOL_UDP, u32_of(bytes));
    header.emit(&mut frame[transport..], pseudo);
    frame
}

/// Both ends and the payload of a UDP datagram, whose checksums are verified.
pub fn parse_datagram(frame: &[u8]) -> Result<(End, End, &[u8]), PacketError> {
    let (link, rest) = ethernet::Header::parse(frame)?;
    let (network, _, rest) = ipv4::Header::parse(rest)?;
    let (header, payload) = udp::Header::parse_v4(rest, network.source, network.target)?;
    let end = |mac, address, port| End { mac, address: SocketAddrV4::new(address, port) };
    let source = end(link.source, network.source, header.source);
    Ok((source, end(link.target, network.target, header.target), payload))
}

/// A frame with Ethernet and IPv4 headers and a payload of zeros. Returns the payload's offset, too.
fn headers(source: End, target: End, protocol: u8, payload_bytes: usize) -> (Vec<u8>, usize) {
    let transport = ethernet::HEADER_BYTES + ipv4::HEADER_BYTES;
    let mut frame = vec![0; transport + payload_bytes];
    let (ethernet_header, rest) = frame.split_first_chunk_mut().expect("the frame has an Ethernet header");
    ethernet::Header { target: target.mac, source: source.mac, kind: KIND_IPV4 }.emit(ethernet_header);
    let header = ipv4::Header {
        source: *source.address.ip(),
        target: *target.address.ip(),
        protocol,
        ttl: 64,
        dscp_ecn: 0,
        ident: 7,
        dont_fragment: true,
        payload_bytes: u16_of(payload_bytes),
    };
    header.emit(rest.first_chunk_mut().expect("the frame has an IPv4 header"));
    (frame, transport)
}

fn u16_of(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("frames of this experiment have at most 200 bytes")
}

fn u32_of(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("frames of this experiment have at most 200 bytes")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const A: End =
        End { mac: Mac([2, 0, 0, 0, 0, 1]), address: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 5_000) };
    const B: End =
        End { mac: Mac([2, 0, 0, 0, 0, 2]), address: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 80) };

    #[test]
    fn a_segment_has_valid_headers_and_checksums() {
        let frame = segment(A, B);
        let (ethernet, rest) = ethernet::Header::parse(&frame).unwrap();
        assert_eq!((ethernet.source, ethernet.target), (A.mac, B.mac));
        let (header, _, rest) = ipv4::Header::parse(rest).unwrap();
        let pseudo = pseudo_v4(header.source, header.target, header.protocol, u32_of(rest.len()));
        let (header, _, payload) = tcp::Header::parse(rest, pseudo).unwrap();
        assert_eq!((header.source, header.target, payload), (5_000, 80, &[0x5a; 64][..]));
    }

    #[test]
    fn a_datagram_has_valid_headers_and_checksums() {
        let frame = datagram(A, B, b"payload");
        assert_eq!(parse_datagram(&frame), Ok((A, B, &b"payload"[..])));
        let mut altered = frame;
        altered[40] ^= 1;
        assert!(parse_datagram(&altered).is_err(), "a wrong checksum should be noticed");
    }
}
