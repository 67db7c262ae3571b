//! Builds frames for peers without a stack, and reads and changes single fields of others.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::{arp, checksum, ipv4, tcp, udp};

const IP_AT: usize = ethernet::HEADER_BYTES;
/// Start of the TCP or UDP header, behind an IPv4 header without options.
const TRANSPORT_AT: usize = IP_AT + ipv4::HEADER_BYTES;
/// The flags of a TCP header.
const FLAGS_AT: usize = TRANSPORT_AT + 13;

/// Hosts have addresses from 10.0.0.1 up.
pub(crate) fn address_of(host: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0001 + host as u32) // fits: a few hosts
}

/// Own address of one of a host's stacks: 10.0.N.1 and up for stack N; the first one has the host's address.
pub(crate) fn own_address(ip: Ipv4Addr, stack: usize) -> Ipv4Addr {
    Ipv4Addr::from(ip.to_bits() + ((stack as u32) << 8)) // fits: a few stacks
}

pub(crate) fn mac_of(ip: Ipv4Addr) -> Mac {
    let [a, b, c, d] = ip.octets();
    Mac([2, 0, a, b, c, d])
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) source_mac: Mac,
    pub(crate) target_mac: Mac,
    pub(crate) source: SocketAddr,
    pub(crate) target: SocketAddr,
}

fn ipv4_of(end: SocketAddr) -> Ipv4Addr {
    match end.ip() {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    }
}

impl Ends {
    /// Ends with the MAC addresses that [`mac_of`] gives their hosts.
    pub(crate) fn between(source: SocketAddr, target: SocketAddr) -> Ends {
        Ends { source_mac: mac_of(ipv4_of(source)), target_mac: mac_of(ipv4_of(target)), source, target }
    }
}

/// A TCP segment in a frame, with the ports of `ends`.
pub(crate) fn segment(ends: Ends, header: tcp::Header, payload: &[u8]) -> Vec<u8> {
    let header = tcp::Header { source: ends.source.port(), target: ends.target.port(), ..header };
    let header_bytes = header.header_bytes();
    let (mut frame, pseudo) = packet(ends, ipv4::PROTOCOL_TCP, header_bytes + payload.len());
    let segment = &mut frame[TRANSPORT_AT..];
    segment[header_bytes..].copy_from_slice(payload);
    header.emit(segment, payload.len(), pseudo);
    frame
}

/// A datagram in a frame.
pub(crate) fn datagram(ends: Ends, payload: &[u8]) -> Vec<u8> {
    let header = udp::Header {
        source: ends.source.port(),
        target: ends.target.port(),
        payload_bytes: payload.len() as u16, // fits: one frame
    };
    let (mut frame, pseudo) = packet(ends, ipv4::PROTOCOL_UDP, udp::HEADER_BYTES + payload.len());
    let datagram = &mut frame[TRANSPORT_AT..];
    datagram[udp::HEADER_BYTES..].copy_from_slice(payload);
    header.emit(datagram, pseudo);
    frame
}

/// A frame with an IPv4 packet whose payload is zeros, and the sum of the payload's pseudo header.
fn packet(ends: Ends, protocol: u8, payload_bytes: usize) -> (Vec<u8>, checksum::Sum) {
    let mut frame = vec![0; TRANSPORT_AT + payload_bytes];
    write_ethernet_header(&mut frame, ends.source_mac, ends.target_mac, ethernet::KIND_IPV4);
    let (source, target) = (ipv4_of(ends.source), ipv4_of(ends.target));
    let ip = ipv4::Header::new(source, target, protocol, payload_bytes as u16); // fits: one frame
    if let Some(out) = frame[IP_AT..].first_chunk_mut() {
        ip.emit(out);
    }
    let pseudo = checksum::pseudo_v4(ip.source, ip.target, protocol, payload_bytes as u32); // fits
    (frame, pseudo)
}

/// The answer to an ARP request for the address `own`.
pub(crate) fn arp_reply(request: &arp::Packet, own: (Mac, Ipv4Addr)) -> Vec<u8> {
    let (target_mac, target_ip) = (request.sender_mac, request.sender_ip);
    let packet = arp::Packet {
        operation: arp::Operation::Reply,
        sender_mac: own.0,
        sender_ip: own.1,
        target_mac,
        target_ip,
    };
    let mut frame = vec![0; ethernet::HEADER_BYTES + arp::BYTES];
    write_ethernet_header(&mut frame, own.0, target_mac, ethernet::KIND_ARP);
    if let Some(body) = frame[ethernet::HEADER_BYTES..].first_chunk_mut() {
        packet.emit(body);
    }
    frame
}

fn write_ethernet_header(frame: &mut [u8], source: Mac, target: Mac, kind: u16) {
    if let Some(out) = frame.first_chunk_mut() {
        ethernet::Header { target, source, kind }.emit(out);
    }
}

/// Whether the frame says that it carries a datagram; the frame may be damaged.
pub(crate) fn is_datagram(frame: &[u8]) -> bool {
    has_protocol(frame, ipv4::PROTOCOL_UDP)
}

/// Target and payload of an undamaged datagram.
pub(crate) fn datagram_in(frame: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (_, packet) = ethernet::Header::parse(frame).ok()?;
    let (ip, _, datagram) = ipv4::Header::parse(packet).ok()?;
    let (header, payload) = udp::Header::parse_v4(datagram, ip.source, ip.target).ok()?;
    Some((SocketAddr::from((ip.target, header.target)), payload))
}

fn has_protocol(frame: &[u8], protocol: u8) -> bool {
    frame.len() > TRANSPORT_AT
        && frame[12..14] == ethernet::KIND_IPV4.to_be_bytes()
        && frame[IP_AT + 9] == protocol
}

/// Source and target of a TCP segment; the frame may be damaged.
pub(crate) fn ends_of(frame: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let end = |at: usize, port: usize| {
        let ip = Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
        SocketAddr::from((ip, u16::from_be_bytes([frame[port], frame[port + 1]])))
    };
    let is_tcp = frame.len() > FLAGS_AT && has_protocol(frame, ipv4::PROTOCOL_TCP);
    is_tcp.then(|| (end(IP_AT + 12, TRANSPORT_AT), end(IP_AT + 16, TRANSPORT_AT + 2)))
}

/// The flags of a TCP segment for which [`ends_of`] returns its ends.
pub(crate) fn flags_of(frame: &[u8]) -> tcp::Flags {
    tcp::Flags(frame.get(FLAGS_AT).copied().unwrap_or_default())
}

/// The TCP segment with another source, as the switch rewrites it.
pub(crate) fn with_source(frame: &[u8], source: SocketAddr) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let word = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let (ip, port) = (ipv4_of(source).octets(), source.port().to_be_bytes());
    let new = [[ip[0], ip[1]], [ip[2], ip[3]], port];
    for (at, to) in [IP_AT + 12, IP_AT + 14, TRANSPORT_AT].into_iter().zip(new) {
        let (from, to_word) = (word(&frame, at), u16::from_be_bytes(to));
        let is_address = at < TRANSPORT_AT;
        for sum_at in [(IP_AT + 10, is_address), (TRANSPORT_AT + 16, true)].into_iter().filter(|(_, is)| *is)
        {
            let sum = checksum::adjust_u16(word(&frame, sum_at.0), from, to_word);
            frame[sum_at.0..sum_at.0 + 2].copy_from_slice(&sum.to_be_bytes());
        }
        frame[at..at + 2].copy_from_slice(&to);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::sniffer::sniff;

    fn end(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_segment_with_another_source_has_valid_checksums() {
        let ends = Ends::between(end("10.0.1.2:8080"), end("10.0.0.1:40000"));
        let header = tcp::Header { flags: tcp::Flags::ACK, ..tcp::Header::default() };
        let frame = with_source(&segment(ends, header, b"abc"), end("10.0.0.2:80"));
        let seen = sniff(&frame).unwrap().unwrap();
        assert_eq!((seen.source, seen.target, seen.payload), (end("10.0.0.2:80"), ends.target, &b"abc"[..]));
        assert_eq!(ends_of(&frame), Some((end("10.0.0.2:80"), ends.target)));
        assert_eq!((flags_of(&frame), is_datagram(&frame)), (tcp::Flags::ACK, false));
    }

    #[test]
    fn datagrams_are_read_back_unless_damaged() {
        let ends = Ends::between(end("10.0.1.2:7301"), end("10.0.255.254:7300"));
        let mut frame = datagram(ends, b"payload");
        assert!(is_datagram(&frame) && ends_of(&frame).is_none());
        assert_eq!(datagram_in(&frame), Some((ends.target, &b"payload"[..])));
        frame[45] ^= 1;
        assert_eq!(datagram_in(&frame), None);
    }
}
