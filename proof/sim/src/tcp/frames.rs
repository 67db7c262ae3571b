//! Builds frames for peers without a stack, and reads and changes single fields of others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::{arp, checksum, ipv4, ipv6, tcp, udp};

const IP_AT: usize = ethernet::HEADER_BYTES;
/// The flags of a TCP header: a frame that ends before them has no segment, as in `core/moves`.
const FLAGS_IN_TCP: usize = 13;
/// The checksum of a TCP header.
const CHECKSUM_IN_TCP: usize = 16;

/// The address family of a world: all of its hosts have addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn of(ip: IpAddr) -> Family {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// The address that stands for an IPv4 address in this family: `fd00::a.b.c.d`.
    pub(crate) fn address(self, ip: Ipv4Addr) -> IpAddr {
        match self {
            Family::V4 => ip.into(),
            Family::V6 => Ipv6Addr::from(0xfd00 << 112 | u128::from(ip.to_bits())).into(),
        }
    }

    /// Address of a host in this family.
    pub(crate) fn address_of(self, host: usize) -> IpAddr {
        self.address(address_of(host))
    }

    /// Length of the prefix that all hosts have in common.
    pub(crate) fn prefix(self) -> u8 {
        match self {
            Family::V4 => 16,
            Family::V6 => 64,
        }
    }

    fn kind(self) -> u16 {
        match self {
            Family::V4 => ethernet::KIND_IPV4,
            Family::V6 => ethernet::KIND_IPV6,
        }
    }

    /// Bytes of an IP header without options.
    pub(crate) fn header_bytes(self) -> usize {
        match self {
            Family::V4 => ipv4::HEADER_BYTES,
            Family::V6 => ipv6::HEADER_BYTES,
        }
    }

    /// Where a packet's protocol, source address and target address are, and the bytes of an address.
    fn fields(self) -> (usize, usize, usize, usize) {
        match self {
            Family::V4 => (IP_AT + 9, IP_AT + 12, IP_AT + 16, 4),
            Family::V6 => (IP_AT + 6, IP_AT + 8, IP_AT + 24, 16),
        }
    }

    /// Start of the TCP or UDP header.
    fn transport_at(self) -> usize {
        IP_AT + self.header_bytes()
    }

    /// The family of the IP packet in a frame.
    fn in_frame(frame: &[u8]) -> Option<Family> {
        let kind = frame.get(12..14)?;
        [Family::V4, Family::V6].into_iter().find(|family| *kind == family.kind().to_be_bytes())
    }
}

/// Hosts have addresses from 10.0.0.1 up.
pub(crate) fn address_of(host: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0001 + host as u32) // fits: a few hosts
}

/// Own address of one of a host's stacks: 10.0.N.1 and up for stack N; the first one has the host's address.
pub(crate) fn own_address(ip: Ipv4Addr, stack: usize) -> Ipv4Addr {
    Ipv4Addr::from(ip.to_bits() + ((stack as u32) << 8)) // fits: a few stacks
}

/// The Ethernet address of a host: the last four bytes of its address tell it.
pub(crate) fn mac_of(ip: impl Into<IpAddr>) -> Mac {
    let [a, b, c, d] = match ip.into() {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => (ip.to_bits() as u32).to_be_bytes(), // fits: the last four bytes
    };
    Mac([2, 0, a, b, c, d])
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) source_mac: Mac,
    pub(crate) target_mac: Mac,
    pub(crate) source: SocketAddr,
    pub(crate) target: SocketAddr,
}

impl Ends {
    /// Ends with the MAC addresses that [`mac_of`] gives their hosts.
    pub(crate) fn between(source: SocketAddr, target: SocketAddr) -> Ends {
        Ends { source_mac: mac_of(source.ip()), target_mac: mac_of(target.ip()), source, target }
    }
}

/// A TCP segment in a frame, with the ports of `ends`.
pub(crate) fn segment(ends: Ends, header: tcp::Header, payload: &[u8]) -> Vec<u8> {
    let header = tcp::Header { source: ends.source.port(), target: ends.target.port(), ..header };
    let header_bytes = header.header_bytes();
    let (mut frame, pseudo) = packet(ends, ipv4::PROTOCOL_TCP, header_bytes + payload.len());
    let start = frame.len() - header_bytes - payload.len();
    let segment = &mut frame[start..];
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
    let start = frame.len() - udp::HEADER_BYTES - payload.len();
    let datagram = &mut frame[start..];
    datagram[udp::HEADER_BYTES..].copy_from_slice(payload);
    header.emit(datagram, pseudo);
    frame
}

/// Builds a frame with an IP packet whose payload is zeros. Also returns the checksum of the pseudo header for that payload.
/// The addresses of both ends must be of the same family.
fn packet(ends: Ends, protocol: u8, payload_bytes: usize) -> (Vec<u8>, checksum::Sum) {
    let family = Family::of(ends.source.ip());
    let mut frame = vec![0; family.transport_at() + payload_bytes];
    write_ethernet_header(&mut frame, ends.source_mac, ends.target_mac, family.kind());
    let packet = &mut frame[IP_AT..];
    let (length, bytes) = (payload_bytes as u16, payload_bytes as u32); // fits: one frame
    let pseudo = match (ends.source.ip(), ends.target.ip()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let ip = ipv4::Header::new(source, target, protocol, length);
            packet.first_chunk_mut().into_iter().for_each(|out| ip.emit(out));
            checksum::pseudo_v4(source, target, protocol, bytes)
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            let ip = ipv6::Header::new(source, target, protocol, length);
            packet.first_chunk_mut().into_iter().for_each(|out| ip.emit(out));
            checksum::pseudo_v6(source, target, protocol, bytes)
        }
        _ => unreachable!("{} and {} are of two families", ends.source, ends.target),
    };
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
    family_with(frame, ipv4::PROTOCOL_UDP, 1).is_some()
}

/// Target and payload of an undamaged datagram.
pub(crate) fn datagram_in(frame: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (_, packet) = ethernet::Header::parse(frame).ok()?;
    let (ip, (header, payload)): (IpAddr, _) = match Family::in_frame(frame)? {
        Family::V4 => {
            let (ip, _, datagram) = ipv4::Header::parse(packet).ok()?;
            (ip.target.into(), udp::Header::parse_v4(datagram, ip.source, ip.target).ok()?)
        }
        Family::V6 => {
            let (ip, _, datagram) = ipv6::Header::parse(packet).ok()?;
            (ip.target.into(), udp::Header::parse_v6(datagram, ip.source, ip.target).ok()?)
        }
    };
    Some((SocketAddr::new(ip, header.target), payload))
}

/// The family of a frame that says that it carries this protocol, with at least `bytes` of the protocol's header.
fn family_with(frame: &[u8], protocol: u8, bytes: usize) -> Option<Family> {
    let family = Family::in_frame(frame)?;
    let (protocol_at, ..) = family.fields();
    let is_long = frame.len() >= family.transport_at() + bytes;
    (is_long && frame[protocol_at] == protocol).then_some(family)
}

/// The flags of a TCP segment; the frame may be damaged.
pub(crate) fn flags_of(frame: &[u8]) -> Option<tcp::Flags> {
    let family = family_with(frame, ipv4::PROTOCOL_TCP, FLAGS_IN_TCP + 1)?;
    Some(tcp::Flags(frame[family.transport_at() + FLAGS_IN_TCP]))
}

/// Source and target of a TCP segment; the frame may be damaged.
pub(crate) fn ends_of(frame: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let family = family_with(frame, ipv4::PROTOCOL_TCP, FLAGS_IN_TCP + 1)?;
    let (_, source_at, target_at, bytes) = family.fields();
    let end = |at: usize, port: usize| {
        let ip: IpAddr = match family {
            Family::V4 => <[u8; 4]>::try_from(&frame[at..at + bytes]).ok()?.into(),
            Family::V6 => <[u8; 16]>::try_from(&frame[at..at + bytes]).ok()?.into(),
        };
        Some(SocketAddr::new(ip, word_at(frame, port)))
    };
    Some((end(source_at, family.transport_at())?, end(target_at, family.transport_at() + 2)?))
}

fn word_at(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// The TCP segment with another source of the same family, as the switch rewrites it.
pub(crate) fn with_source(frame: &[u8], source: SocketAddr) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let family = Family::of(source.ip());
    let (_, source_at, ..) = family.fields();
    let octets = match source.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let address = octets.chunks(2).enumerate().map(|(n, word)| (source_at + 2 * n, [word[0], word[1]]));
    for (at, to) in address.chain([(family.transport_at(), source.port().to_be_bytes())]).collect::<Vec<_>>()
    {
        // An IPv6 header has no checksum.
        let has_ip_sum = family == Family::V4 && at < family.transport_at();
        let sums = [Some(family.transport_at() + CHECKSUM_IN_TCP), has_ip_sum.then_some(IP_AT + 10)];
        for sum_at in sums.into_iter().flatten() {
            let (from, to_word) = (word_at(&frame, at), u16::from_be_bytes(to));
            let sum = checksum::adjust_u16(word_at(&frame, sum_at), from, to_word);
            frame[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        frame[at..at + 2].copy_from_slice(&to);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::sniffer::sniff;

    #[test]
    fn a_segment_with_another_source_has_valid_checksums() {
        for family in [Family::V4, Family::V6] {
            let at = |host, port| SocketAddr::new(family.address_of(host), port);
            let ends = Ends::between(at(7, 8080), at(0, 40000));
            let header = tcp::Header { flags: tcp::Flags::ACK, ..tcp::Header::default() };
            let frame = with_source(&segment(ends, header, b"abc"), at(1, 80));
            let seen = sniff(&frame).unwrap().unwrap();
            assert_eq!((seen.source, seen.target, seen.payload), (at(1, 80), ends.target, &b"abc"[..]));
            assert_eq!(ends_of(&frame), Some((at(1, 80), ends.target)));
            assert!(!is_datagram(&frame));
            for bytes in 0..frame.len() {
                _ = (ends_of(&frame[..bytes]), is_datagram(&frame[..bytes]));
            }
        }
    }

    #[test]
    fn datagrams_are_read_back_unless_damaged() {
        for family in [Family::V4, Family::V6] {
            let at = |host, port| SocketAddr::new(family.address_of(host), port);
            let ends = Ends::between(at(7, 7301), at(9, 7300));
            let mut frame = datagram(ends, b"payload");
            assert!(is_datagram(&frame) && ends_of(&frame).is_none());
            assert_eq!(datagram_in(&frame), Some((ends.target, &b"payload"[..])));
            let last = frame.len() - 1;
            frame[last] ^= 1;
            assert_eq!(datagram_in(&frame), None);
        }
    }
}
