//! Reads a client's frame, and directs it to another server.

use core::net::SocketAddr;

use spillway_wire::packet::checksum::{adjust_u16, pseudo_v4, pseudo_v6};
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::{ipv4, ipv6, tcp};
use spillway_wire::switch::Endpoint;

const IP_AT: usize = ethernet::HEADER_BYTES;
const IPV4_CHECKSUM_AT: usize = IP_AT + 10;
const IPV4_TARGET_AT: usize = IP_AT + 16;
const IPV6_TARGET_AT: usize = IP_AT + 24;
const TCP_CHECKSUM: usize = 16;
const TCP_TARGET: usize = 2;

/// Ends and flags of the TCP segment in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) source: SocketAddr,
    pub(crate) target: SocketAddr,
    pub(crate) flags: tcp::Flags,
    /// Offset of the TCP header in the frame.
    at: usize,
}

/// Parses the TCP segment in a frame. Returns `None` if the frame carries no TCP segment, or if a checksum is wrong.
pub(crate) fn parse(frame: &[u8]) -> Option<Segment> {
    let (header, packet) = ethernet::Header::parse(frame).ok()?;
    let (source, target, header_bytes, segment, pseudo) = match header.kind {
        ethernet::KIND_IPV4 => {
            let (ip, header_bytes, segment) = ipv4::Header::parse(packet).ok()?;
            let length = u32::try_from(segment.len()).ok()?;
            let pseudo = pseudo_v4(ip.source, ip.target, ip.protocol, length);
            let is_tcp = ip.protocol == ipv4::PROTOCOL_TCP;
            is_tcp.then_some((ip.source.into(), ip.target.into(), header_bytes, segment, pseudo))?
        }
        ethernet::KIND_IPV6 => {
            let (ip, header_bytes, segment) = ipv6::Header::parse(packet).ok()?;
            let length = u32::try_from(segment.len()).ok()?;
            let pseudo = pseudo_v6(ip.source, ip.target, ip.protocol, length);
            let is_tcp = ip.protocol == ipv4::PROTOCOL_TCP;
            is_tcp.then_some((ip.source.into(), ip.target.into(), header_bytes, segment, pseudo))?
        }
        _ => return None,
    };
    let (tcp, _, _) = tcp::Header::parse(segment, pseudo).ok()?;
    Some(Segment {
        source: SocketAddr::new(source, tcp.source),
        target: SocketAddr::new(target, tcp.target),
        flags: tcp.flags,
        at: IP_AT + header_bytes,
    })
}

/// Directs a frame to a server's place, as the switch does. Returns false if the place has another address family.
pub(crate) fn redirect(frame: &mut [u8], segment: &Segment, mac: Mac, place: Endpoint) -> bool {
    let place = SocketAddr::from(place);
    if frame.len() < segment.at + tcp::HEADER_BYTES || place.is_ipv4() != segment.target.is_ipv4() {
        return false;
    }
    frame[..6].copy_from_slice(&mac.0);
    let (checksum_at, port_at) = (segment.at + TCP_CHECKSUM, segment.at + TCP_TARGET);
    match place {
        SocketAddr::V4(place) => {
            for (index, word) in place.ip().octets().chunks(2).enumerate() {
                let at = IPV4_TARGET_AT + 2 * index;
                replace(frame, at, word, &[IPV4_CHECKSUM_AT, checksum_at]);
            }
        }
        SocketAddr::V6(place) => {
            for (index, word) in place.ip().octets().chunks(2).enumerate() {
                replace(frame, IPV6_TARGET_AT + 2 * index, word, &[checksum_at]);
            }
        }
    }
    replace(frame, port_at, &place.port().to_be_bytes(), &[checksum_at]);
    true
}

/// Replaces a word, and updates the checksums at these places (RFC 1624). The offsets must be inside the frame.
fn replace(frame: &mut [u8], at: usize, to: &[u8], checksums_at: &[usize]) {
    let word = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let (from, to) = (word(frame, at), word(to, 0));
    if from == to {
        return;
    }
    frame[at..at + 2].copy_from_slice(&to.to_be_bytes());
    for checksum_at in checksums_at {
        let checksum = adjust_u16(word(frame, *checksum_at), from, to);
        frame[*checksum_at..*checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    fn frame(source: &str, target: &str) -> Vec<u8> {
        let (source, target) = (source.parse::<SocketAddr>().unwrap(), target.parse::<SocketAddr>().unwrap());
        let tcp = tcp::Header {
            source: source.port(),
            target: target.port(),
            seq: 0x1234_5678,
            flags: tcp::Flags::ACK,
            ..tcp::Header::default()
        };
        let payload = b"some bytes";
        let length = tcp.header_bytes() + payload.len();
        let (header_bytes, kind) = match source {
            SocketAddr::V4(_) => (ipv4::HEADER_BYTES, ethernet::KIND_IPV4),
            SocketAddr::V6(_) => (ipv6::HEADER_BYTES, ethernet::KIND_IPV6),
        };
        let mut frame = vec![0; IP_AT + header_bytes + length];
        let macs = ethernet::Header { target: Mac([2; 6]), source: Mac([4; 6]), kind };
        macs.emit(frame.first_chunk_mut().unwrap());
        let pseudo = match (source, target) {
            (SocketAddr::V4(source), SocketAddr::V4(target)) => {
                let ip = ipv4::Header::new(*source.ip(), *target.ip(), ipv4::PROTOCOL_TCP, length as u16);
                ip.emit(frame[IP_AT..].first_chunk_mut().unwrap());
                pseudo_v4(ip.source, ip.target, ip.protocol, length as u32)
            }
            (SocketAddr::V6(source), SocketAddr::V6(target)) => {
                let ip = ipv6::Header::new(*source.ip(), *target.ip(), ipv4::PROTOCOL_TCP, length as u16);
                ip.emit(frame[IP_AT..].first_chunk_mut().unwrap());
                pseudo_v6(ip.source, ip.target, ip.protocol, length as u32)
            }
            _ => panic!("one family"),
        };
        let at = IP_AT + header_bytes;
        frame[at + tcp.header_bytes()..].copy_from_slice(payload);
        tcp.emit(&mut frame[at..], payload.len(), pseudo);
        frame
    }

    #[test]
    fn a_redirected_frame_has_the_place_as_its_target_and_valid_checksums() {
        for [client, service, place] in [
            ["10.0.0.2:40000", "10.0.0.1:80", "10.0.1.9:8080"],
            ["[fd00::2]:40000", "[fd00::1]:80", "[fd00::1:9]:8080"],
        ] {
            let mut moved = frame(client, service);
            let segment = parse(&moved).unwrap();
            let place: SocketAddr = place.parse().unwrap();
            assert!(redirect(&mut moved, &segment, Mac([6; 6]), place.into()));
            let expected = Segment { target: place, ..segment };
            assert_eq!((parse(&moved), &moved[..6]), (Some(expected), &[6; 6][..]));
            assert_eq!(moved[6..12], [4; 6], "the stack learns its next hop from the source");
        }
    }

    #[test]
    fn a_damaged_frame_is_not_parsed() {
        let intact = frame("10.0.0.2:40000", "10.0.0.1:80");
        for at in IP_AT..intact.len() {
            let mut damaged = intact.clone();
            damaged[at] ^= 0x10;
            assert_eq!(parse(&damaged), None, "byte {at}");
            assert_eq!(parse(&intact[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn a_place_of_the_other_family_is_rejected() {
        let mut frame = frame("10.0.0.2:40000", "10.0.0.1:80");
        let segment = parse(&frame).unwrap();
        let place: SocketAddr = "[fd00::1]:80".parse().unwrap();
        assert!(!redirect(&mut frame, &segment, Mac([6; 6]), place.into()));
    }
}
