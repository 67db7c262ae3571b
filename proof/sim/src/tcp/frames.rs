//! Builds frames for peers without a stack.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::{arp, checksum, ipv4, tcp};

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
    let (tcp_at, header_bytes) = (ethernet::HEADER_BYTES + ipv4::HEADER_BYTES, header.header_bytes());
    let segment_bytes = header_bytes + payload.len();
    let mut frame = vec![0; tcp_at + segment_bytes];
    write_ethernet_header(&mut frame, ends.source_mac, ends.target_mac, ethernet::KIND_IPV4);
    let ip = ipv4::Header {
        source: ipv4_of(ends.source),
        target: ipv4_of(ends.target),
        protocol: ipv4::PROTOCOL_TCP,
        ttl: 64,
        dscp_ecn: 0,
        ident: 0,
        dont_fragment: true,
        payload_bytes: segment_bytes as u16, // fits: one frame
    };
    if let Some(out) = frame[ethernet::HEADER_BYTES..].first_chunk_mut() {
        ip.emit(out);
    }
    let pseudo = checksum::pseudo_v4(ip.source, ip.target, ip.protocol, segment_bytes as u32); // fits
    frame[tcp_at + header_bytes..].copy_from_slice(payload);
    header.emit(&mut frame[tcp_at..], payload.len(), pseudo);
    frame
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
