//! Frames with a control message, as the program reads and writes them when the daemon runs it.

use std::net::{IpAddr, SocketAddr};

use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::{checksum, ipv4, ipv6, udp};
use spillway_wire::switch::MESSAGE_BYTES;

/// Ethernet source and destination of the daemon's frames. The program does not check them.
const MAC: Mac = Mac([2, 0, 0, 0, 0, 0]);
const HOP_LIMIT: u8 = 64;
/// Bytes of the datagram with its header.
const DATAGRAM_BYTES: u16 = (udp::HEADER_BYTES + MESSAGE_BYTES) as u16;

/// A frame with a datagram to `target`. The source is the address of `target` if `source` has another address family.
pub(crate) fn frame(
    source: IpAddr,
    source_port: u16,
    target: SocketAddr,
    payload: &[u8; MESSAGE_BYTES],
) -> Vec<u8> {
    let ip_bytes = if target.is_ipv4() { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES };
    let mut frame = vec![0; ethernet::HEADER_BYTES + ip_bytes + usize::from(DATAGRAM_BYTES)];
    let start = frame.len() - MESSAGE_BYTES;
    frame[start..].copy_from_slice(payload);
    let (head, rest) = frame.split_at_mut(ethernet::HEADER_BYTES);
    let (packet, datagram) = rest.split_at_mut(ip_bytes);
    let (pseudo, kind) = match target.ip() {
        IpAddr::V4(target) => {
            let source = if let IpAddr::V4(source) = source { source } else { target };
            let header = ipv4::Header {
                source,
                target,
                protocol: ipv4::PROTOCOL_UDP,
                ttl: HOP_LIMIT,
                dscp_ecn: 0,
                ident: 0,
                dont_fragment: true,
                payload_bytes: DATAGRAM_BYTES,
            };
            header.emit(packet.try_into().expect("the packet's head has the length of a header"));
            let pseudo = checksum::pseudo_v4(source, target, ipv4::PROTOCOL_UDP, DATAGRAM_BYTES.into());
            (pseudo, ethernet::KIND_IPV4)
        }
        IpAddr::V6(target) => {
            let source = if let IpAddr::V6(source) = source { source } else { target };
            let header = ipv6::Header {
                source,
                target,
                protocol: ipv4::PROTOCOL_UDP,
                hop_limit: HOP_LIMIT,
                dscp_ecn: 0,
                flow_label: 0,
                payload_bytes: DATAGRAM_BYTES,
            };
            header.emit(packet.try_into().expect("the packet's head has the length of a header"));
            let pseudo = checksum::pseudo_v6(source, target, ipv4::PROTOCOL_UDP, DATAGRAM_BYTES.into());
            (pseudo, ethernet::KIND_IPV6)
        }
    };
    let payload_bytes = DATAGRAM_BYTES - udp::HEADER_BYTES as u16;
    let header = udp::Header { source: source_port, target: target.port(), payload_bytes };
    header.emit(datagram, pseudo);
    let header = ethernet::Header { target: MAC, source: MAC, kind };
    header.emit(head.try_into().expect("the frame's head has the length of a header"));
    frame
}

/// The destination and the payload of a frame's datagram. `None`: the frame has no datagram.
pub(crate) fn read(frame: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (head, packet) = ethernet::Header::parse(frame).ok()?;
    match head.kind {
        ethernet::KIND_IPV4 => {
            let (ip, _, datagram) = ipv4::Header::parse(packet).ok()?;
            let (header, payload) = udp::Header::parse_v4(datagram, ip.source, ip.target).ok()?;
            (ip.protocol == ipv4::PROTOCOL_UDP)
                .then_some((SocketAddr::from((ip.target, header.target)), payload))
        }
        ethernet::KIND_IPV6 => {
            let (ip, _, datagram) = ipv6::Header::parse(packet).ok()?;
            let (header, payload) = udp::Header::parse_v6(datagram, ip.source, ip.target).ok()?;
            (ip.protocol == ipv4::PROTOCOL_UDP)
                .then_some((SocketAddr::from((ip.target, header.target)), payload))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_its_destination_and_its_payload() {
        for target in ["10.0.0.1:9511", "[2001:db8::1]:9511"] {
            let target: SocketAddr = target.parse().unwrap();
            let frame = frame(target.ip(), 4000, target, &[7; MESSAGE_BYTES]);
            assert_eq!(read(&frame), Some((target, &[7; MESSAGE_BYTES][..])));
            let mut damaged = frame.clone();
            damaged[frame.len() - 1] ^= 1;
            assert_eq!(read(&damaged), None, "the checksum is wrong");
            assert_eq!(read(&frame[..60]), None);
        }
        assert_eq!(read(&[0; 60]), None);
    }
}
