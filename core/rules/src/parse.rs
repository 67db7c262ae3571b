//! Finds the headers of a frame: Ethernet with VLAN tags, ARP, IPv4 with options, IPv6 with extension headers. Gives
//! the same results as `host/bpf/c/parse.h`.

use core::net::Ipv4Addr;

use spillway_wire::packet::ethernet::{HEADER_BYTES, KIND_ARP, KIND_IPV4, KIND_IPV6, Mac};
use spillway_wire::switch::Endpoint;

use crate::address::Address;

/// A chain of this number of IPv6 extension headers is too long, as in `parse.h`; shorter chains are parsed.
const EXTENSIONS_MAX: usize = 8;
/// Maximum VLAN tags, as in `parse.h`.
const VLAN_TAGS_MAX: usize = 3;

const KIND_VLAN: u16 = 0x8100;
const KIND_SERVICE_VLAN: u16 = 0x88a8;

/// ICMP for IPv4 (RFC 792).
pub(crate) const PROTOCOL_ICMP: u8 = 1;
pub(crate) const PROTOCOL_TCP: u8 = 6;
pub(crate) const PROTOCOL_UDP: u8 = 17;
/// ICMPv6 (RFC 4443).
pub(crate) const PROTOCOL_ICMPV6: u8 = 58;

const EXTENSION_HOP_BY_HOP: u8 = 0;
const EXTENSION_ROUTING: u8 = 43;
const EXTENSION_FRAGMENT: u8 = 44;
const EXTENSION_DESTINATION: u8 = 60;

pub(crate) const IPV4_HEADER_BYTES: usize = 20;
pub(crate) const IPV6_HEADER_BYTES: usize = 40;
/// The least length of a header behind an IPv6 header.
const NEXT_HEADER_BYTES_MIN: usize = 8;
const TCP_HEADER_BYTES: usize = 20;

/// A frame whose headers are truncated or invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short;

/// The headers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// Neither IP nor ARP.
    Other,
    /// More VLAN tags than are parsed: it may carry IP.
    ManyTags,
    /// ARP for IPv4 over Ethernet.
    Arp(Arp),
    /// An IP packet.
    Ip(Packet),
}

/// The addresses of an ARP packet (RFC 826).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arp {
    pub(crate) sender: Address,
    pub(crate) target: Address,
}

/// An IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) network: Network,
    pub(crate) source: Address,
    pub(crate) target: Address,
    pub(crate) upper: Upper,
}

/// Position of the IP header, which was checked to be complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) is_ipv4: bool,
    /// Offset of the header in the frame.
    pub(crate) at: usize,
}

/// What an IP packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upper {
    Tcp(Transport),
    Udp(Transport),
    /// Another protocol.
    Other {
        protocol: u8,
        at: usize,
        is_fragment: bool,
    },
    /// The ports are in another fragment.
    LaterFragment,
    /// Too many IPv6 extension headers, or a first fragment in which some of the headers are missing (RFC 7112).
    LongChain,
}

/// The header of TCP or UDP, of which at least the ports are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transport {
    /// Offset of the header in the frame.
    pub(crate) at: usize,
    pub(crate) source: Endpoint,
    pub(crate) target: Endpoint,
    /// Whether the packet is a first fragment. Includes fragments that are whole packets (RFC 6946).
    pub(crate) is_fragment: bool,
}

/// The flags of a TCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpFlags(u8);

impl TcpFlags {
    pub(crate) fn has_fin(self) -> bool {
        self.0 & 0x01 != 0
    }

    pub(crate) fn has_ack(self) -> bool {
        self.0 & 0x10 != 0
    }

    pub(crate) fn has_syn(self) -> bool {
        self.0 & 0x02 != 0
    }

    pub(crate) fn has_rst(self) -> bool {
        self.0 & 0x04 != 0
    }

    /// Whether the segment opens a connection: SYN without ACK.
    pub(crate) fn is_opening(self) -> bool {
        self.has_syn() && !self.has_ack()
    }
}

/// What the rules read of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) flags: TcpFlags,
    /// The acknowledgement number.
    pub(crate) acknowledgement: u32,
    /// The sequence number after the segment, with its SYN and FIN.
    pub(crate) end: u32,
}

impl Packet {
    /// The segment of a TCP packet whose TCP header is complete.
    pub(crate) fn segment(&self, frame: &[u8], tcp: &Transport) -> Result<Segment, Short> {
        let header: [u8; TCP_HEADER_BYTES] = array(frame, tcp.at)?;
        let number = |at| array(&header, at).map(u32::from_be_bytes);
        let flags = TcpFlags(header[13]);
        let headers = tcp.at - self.network.at + usize::from(header[12] >> 4) * 4;
        let payload = self.network.bytes(frame)?.saturating_sub(headers);
        let payload = u32::try_from(payload).map_err(|_| Short)?;
        let end = number(4)?
            .wrapping_add(payload)
            .wrapping_add(u32::from(flags.has_syn()))
            .wrapping_add(u32::from(flags.has_fin()));
        Ok(Segment { flags, acknowledgement: number(8)?, end })
    }
}

impl Packet {
    /// Whether the packet's headers have their least lengths, and no VLAN tag precedes them.
    pub(crate) fn is_plain(&self, transport: &Transport) -> bool {
        let bytes = if self.network.is_ipv4 { IPV4_HEADER_BYTES } else { IPV6_HEADER_BYTES };
        self.network.at == HEADER_BYTES && transport.at == self.network.at + bytes
    }
}

impl Network {
    /// Length of the IP packet, with its header, as its header states it.
    pub(crate) fn bytes(&self, frame: &[u8]) -> Result<usize, Short> {
        if self.is_ipv4 {
            u16_at(frame, self.at + 2).map(usize::from)
        } else {
            u16_at(frame, self.at + 4).map(|payload| IPV6_HEADER_BYTES + usize::from(payload))
        }
    }
}

/// The destination of a frame.
pub(crate) fn target_mac(frame: &[u8]) -> Result<Mac, Short> {
    array(frame, 0).map(Mac)
}

/// The sender of a frame.
pub(crate) fn source_mac(frame: &[u8]) -> Result<Mac, Short> {
    array(frame, 6).map(Mac)
}

/// Parses a frame.
pub(crate) fn parse(frame: &[u8]) -> Result<Parsed, Short> {
    let mut at = HEADER_BYTES;
    let mut kind = u16_at(frame, at - 2)?;
    for _ in 0..VLAN_TAGS_MAX {
        if !matches!(kind, KIND_VLAN | KIND_SERVICE_VLAN) {
            break;
        }
        kind = u16_at(frame, at + 2)?;
        at += 4;
    }
    match kind {
        KIND_IPV4 => parse_ipv4(frame, at).map(Parsed::Ip),
        KIND_IPV6 => parse_ipv6(frame, at).map(Parsed::Ip),
        KIND_ARP => parse_arp(frame, at),
        KIND_VLAN | KIND_SERVICE_VLAN => Ok(Parsed::ManyTags),
        _ => Ok(Parsed::Other),
    }
}

fn parse_arp(frame: &[u8], at: usize) -> Result<Parsed, Short> {
    let packet: [u8; 28] = array(frame, at)?;
    // Hardware Ethernet, which Linux also accepts as IEEE 802; protocol IPv4; and the lengths of their addresses.
    if !matches!(packet[..6], [0, 1 | 6, 0x08, 0, 6, 4]) {
        return Ok(Parsed::Other);
    }
    let address = |at| -> Result<Address, Short> { Ok(Ipv4Addr::from(array::<4>(&packet, at)?).into()) };
    Ok(Parsed::Arp(Arp { sender: address(14)?, target: address(24)? }))
}

fn parse_ipv4(frame: &[u8], at: usize) -> Result<Packet, Short> {
    let header: [u8; IPV4_HEADER_BYTES] = array(frame, at)?;
    let (version, words) = (header[0] >> 4, usize::from(header[0] & 15));
    if version != 4 || words < 5 {
        return Err(Short);
    }
    let address = |at| -> Result<Address, Short> { Ok(Ipv4Addr::from(array::<4>(&header, at)?).into()) };
    let (source, target) = (address(12)?, address(16)?);
    let fragment = u16_at(&header, 6)?;
    let upper = if fragment & 0x1fff != 0 {
        Upper::LaterFragment
    } else {
        let is_fragment = fragment & 0x2000 != 0;
        parse_upper(frame, at + words * 4, header[9], source, target, is_fragment)?
    };
    Ok(Packet { network: Network { is_ipv4: true, at }, source, target, upper })
}

fn parse_ipv6(frame: &[u8], at: usize) -> Result<Packet, Short> {
    let header: [u8; IPV6_HEADER_BYTES] = array(frame, at)?;
    if header[0] >> 4 != 6 {
        return Err(Short);
    }
    let (source, target) = (Address(array(&header, 8)?), Address(array(&header, 24)?));
    let network = Network { is_ipv4: false, at };
    let upper = parse_extensions(frame, network, header[6], source, target)?;
    Ok(Packet { network, source, target, upper })
}

fn parse_extensions(
    frame: &[u8],
    network: Network,
    mut next: u8,
    source: Address,
    target: Address,
) -> Result<Upper, Short> {
    let end = network.at + network.bytes(frame)?;
    let mut at = network.at + IPV6_HEADER_BYTES;
    let mut is_fragment = false;
    for _ in 0..EXTENSIONS_MAX {
        // What follows in the frame is padding, in place of headers that another fragment has.
        let is_cut = is_fragment && at + NEXT_HEADER_BYTES_MIN > end;
        match next {
            EXTENSION_FRAGMENT
            | EXTENSION_HOP_BY_HOP
            | EXTENSION_ROUTING
            | EXTENSION_DESTINATION
            | PROTOCOL_TCP
            | PROTOCOL_UDP
                if is_cut =>
            {
                return Ok(Upper::LongChain);
            }
            EXTENSION_FRAGMENT => {
                let extension: [u8; 8] = array(frame, at)?;
                if u16_at(&extension, 2)? & 0xfff8 != 0 {
                    return Ok(Upper::LaterFragment);
                }
                (next, at, is_fragment) = (extension[0], at + 8, true);
            }
            EXTENSION_HOP_BY_HOP | EXTENSION_ROUTING | EXTENSION_DESTINATION => {
                let extension: [u8; 2] = array(frame, at)?;
                (next, at) = (extension[0], at + (usize::from(extension[1]) + 1) * 8);
            }
            protocol => return parse_upper(frame, at, protocol, source, target, is_fragment),
        }
    }
    Ok(Upper::LongChain)
}

fn parse_upper(
    frame: &[u8],
    at: usize,
    protocol: u8,
    source: Address,
    target: Address,
    is_fragment: bool,
) -> Result<Upper, Short> {
    if !matches!(protocol, PROTOCOL_TCP | PROTOCOL_UDP) {
        return Ok(Upper::Other { protocol, at, is_fragment });
    }
    let source = Endpoint::new(source.0, u16_at(frame, at)?);
    let target = Endpoint::new(target.0, u16_at(frame, at + 2)?);
    let transport = Transport { at, source, target, is_fragment };
    Ok(if protocol == PROTOCOL_TCP { Upper::Tcp(transport) } else { Upper::Udp(transport) })
}

/// The bytes of a frame at an offset.
pub(crate) fn array<const N: usize>(frame: &[u8], at: usize) -> Result<[u8; N], Short> {
    frame.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(Short)
}

/// A number in network order.
pub(crate) fn u16_at(frame: &[u8], at: usize) -> Result<u16, Short> {
    array(frame, at).map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::test_config::{address, endpoint};

    fn header(kind: u16) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        frame.extend(kind.to_be_bytes());
        frame
    }

    /// An IPv4 packet with 4 bytes of options, to 10.0.0.2.
    fn ipv4(protocol: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
        let mut frame = header(KIND_IPV4);
        frame.extend([0x46, 0, 0, 0, 0, 0]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 1]);
        frame.extend(rest);
        frame
    }

    /// An IPv6 packet with these extension headers and 8 bytes of TCP, of which the ports are 1 and 2.
    fn ipv6(extensions: &[(u8, u8)]) -> Vec<u8> {
        let mut frame = header(KIND_IPV6);
        let next = |index: usize| extensions.get(index).map_or(PROTOCOL_TCP, |(kind, _)| *kind);
        frame.extend([0x60, 0, 0, 0, 0, 0, next(0), 64]);
        frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        for (index, (kind, field)) in extensions.iter().enumerate() {
            if *kind == EXTENSION_FRAGMENT {
                frame.extend([next(index + 1), 0, 0, *field, 0, 0, 0, 0]);
            } else {
                frame.extend([next(index + 1), *field]);
                frame.extend(vec![0; 6 + 8 * usize::from(*field)]);
            }
        }
        frame.extend([0, 1, 0, 2, 0, 0, 0, 0]);
        let payload = u16::try_from(frame.len() - 54).unwrap();
        frame[18..20].copy_from_slice(&payload.to_be_bytes());
        frame
    }

    fn upper(frame: &[u8]) -> Upper {
        let Ok(Parsed::Ip(packet)) = parse(frame) else { panic!("this is an IP packet") };
        packet.upper
    }

    #[test]
    fn ports_of_ipv4_are_behind_options() {
        let frame = ipv4(PROTOCOL_UDP, 0x4000, &[0, 1, 0, 2]);
        let (source, target) = (endpoint("10.0.0.1:1"), endpoint("10.0.0.2:2"));
        assert_eq!(upper(&frame), Upper::Udp(Transport { at: 38, source, target, is_fragment: false }));
        let Ok(Parsed::Ip(packet)) = parse(&frame) else { panic!("this is an IP packet") };
        assert_eq!((packet.source, packet.target), (address("10.0.0.1"), address("10.0.0.2")));
        assert_eq!(packet.network, Network { is_ipv4: true, at: 14 });
        let first = ipv4(PROTOCOL_TCP, 0x2000, &[0, 1, 0, 2]);
        assert_eq!(upper(&first), Upper::Tcp(Transport { at: 38, source, target, is_fragment: true }));
        assert_eq!(upper(&ipv4(PROTOCOL_TCP, 1, &[])), Upper::LaterFragment);
        assert_eq!(upper(&ipv4(1, 0, &[])), Upper::Other { protocol: 1, at: 38, is_fragment: false });
        assert_eq!(parse(&ipv4(PROTOCOL_TCP, 0, &[0, 1, 0])), Err(Short));
    }

    #[test]
    fn up_to_seven_extension_headers_are_parsed() {
        for count in 0..=9 {
            let frame = ipv6(&vec![(EXTENSION_DESTINATION, 1); count]);
            match upper(&frame) {
                Upper::Tcp(tcp) => assert!(count <= 7 && tcp.at == 54 + 16 * count, "{count}"),
                other => assert!(count > 7 && other == Upper::LongChain, "{count}"),
            }
        }
        assert_eq!(upper(&ipv6(&[(0, 0), (EXTENSION_FRAGMENT, 8)])), Upper::LaterFragment);
        let Upper::Tcp(tcp) = upper(&ipv6(&[(43, 2), (EXTENSION_FRAGMENT, 1)])) else { panic!("TCP") };
        assert_eq!((tcp.at, tcp.is_fragment), (54 + 24 + 8, true), "more fragments follow");
    }

    #[test]
    fn headers_behind_the_end_of_a_first_fragment_are_not_read() {
        for (extensions, bytes) in
            [(&[(EXTENSION_FRAGMENT, 1)][..], 8), (&[(EXTENSION_FRAGMENT, 1), (60, 1)], 24)]
        {
            let mut frame = ipv6(extensions);
            for (payload, is_cut) in [(bytes + 8, false), (bytes + 7, true), (bytes, true), (0, true)] {
                frame[19] = payload;
                assert_eq!(upper(&frame) == Upper::LongChain, is_cut, "{payload} of {extensions:?}");
            }
        }
        // Of a whole packet the receiver ignores what follows.
        let mut frame = ipv6(&[(60, 1)]);
        frame[19] = 0;
        assert!(matches!(upper(&frame), Upper::Tcp(_)));
    }

    #[test]
    fn up_to_three_tags_are_parsed() {
        for tags in 0..=4 {
            let mut frame = ipv4(PROTOCOL_TCP, 0, &[0, 1, 0, 2]);
            for _ in 0..tags {
                frame.splice(12..12, [0x88, 0xa8, 0, 1]);
            }
            match parse(&frame) {
                Ok(Parsed::Ip(packet)) => assert!(tags <= 3 && packet.network.at == 14 + 4 * tags),
                other => assert!(tags == 4 && other == Ok(Parsed::ManyTags)),
            }
        }
    }

    #[test]
    fn arp_states_sender_and_target() {
        let mut frame = header(KIND_ARP);
        frame.extend([0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
        let arp = Ok(Parsed::Arp(Arp { sender: address("10.0.0.1"), target: address("10.0.0.2") }));
        assert_eq!(parse(&frame), arp);
        assert_eq!(parse(&frame[..frame.len() - 1]), Err(Short));
        frame[14 + 1] = 6;
        assert_eq!(parse(&frame), arp, "IEEE 802, as Linux");
        frame[14 + 5] = 16;
        assert_eq!(parse(&frame), Ok(Parsed::Other));
    }

    #[test]
    fn every_cut_of_every_frame_is_parsed() {
        let frames = [
            ipv4(PROTOCOL_TCP, 0, &[0, 1, 0, 2]),
            ipv6(&[(0, 1), (EXTENSION_FRAGMENT, 0), (60, 0)]),
            header(KIND_ARP),
        ];
        for frame in frames {
            for length in 0..frame.len() {
                // Of TCP only the ports are read.
                let is_short = length < frame.len() - 4 || frame.len() < 60;
                assert_eq!(parse(&frame[..length]) == Err(Short), is_short, "{length} bytes of {frame:?}");
            }
        }
        assert_eq!(parse(&header(0x1234)), Ok(Parsed::Other));
    }

    #[test]
    fn the_end_of_a_segment_counts_payload_syn_and_fin() {
        let segment = |flags: u8, total: u8, offset: u8| {
            let mut frame = ipv4(PROTOCOL_TCP, 0, &[0; 20]);
            frame[14 + 3] = total;
            frame[38 + 4..38 + 8].copy_from_slice(&[0xff; 4]);
            frame[38 + 8..38 + 12].copy_from_slice(&[0, 0, 0, 9]);
            (frame[38 + 12], frame[38 + 13]) = (offset << 4, flags);
            let Ok(Parsed::Ip(packet)) = parse(&frame) else { panic!("this is an IP packet") };
            let Upper::Tcp(tcp) = packet.upper else { panic!("TCP") };
            packet.segment(&frame, &tcp).unwrap()
        };
        assert_eq!(segment(0x10, 44, 5).end, u32::MAX);
        assert_eq!(segment(0x11, 44, 5).end, 0, "wraps");
        assert_eq!(segment(0x03, 54, 5).end, 11);
        assert_eq!(segment(0x11, 54, 8).end, 0, "options are no payload");
        assert_eq!(segment(0x11, 20, 5).end, 0, "a length below the headers is no payload");
        assert_eq!(segment(0x11, 44, 5).acknowledgement, 9);
    }
}
