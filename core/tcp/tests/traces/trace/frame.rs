//! Frames that the scripted peer sends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use spillway_wire::packet::checksum::Sum;
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::tcp::{Header, Options};
use spillway_wire::packet::{arp, checksum, icmp, ipv4, ipv6};

pub const STACK_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const PEER_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
pub const STACK_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const STACK_IP6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
pub const PEER_IP6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

const IP_AT: usize = ethernet::HEADER_BYTES;
pub const TCP_AT: usize = IP_AT + ipv4::HEADER_BYTES;
pub const TCP_AT6: usize = IP_AT + ipv6::HEADER_BYTES;

/// A frame with an IPv4 packet to the stack.
pub fn packet(source: Ipv4Addr, target: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; TCP_AT];
    let header = ethernet::Header { target: STACK_MAC, source: PEER_MAC, kind: ethernet::KIND_IPV4 };
    header.emit(frame.first_chunk_mut().expect("a buffer for the header"));
    let payload_bytes = u16::try_from(payload.len()).expect("a length within one packet");
    let header = ipv4::Header::new(source, target, protocol, payload_bytes);
    header.emit(frame[IP_AT..].first_chunk_mut().expect("a buffer for the header"));
    frame.extend_from_slice(payload);
    frame
}

/// A frame with an IPv6 packet to the stack. `protocol` is the number of the payload's first header.
pub fn packet6(source: Ipv6Addr, target: Ipv6Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; TCP_AT6];
    let header = ethernet::Header { target: STACK_MAC, source: PEER_MAC, kind: ethernet::KIND_IPV6 };
    header.emit(frame.first_chunk_mut().expect("a buffer for the header"));
    let header = ipv6::Header {
        source,
        target,
        protocol,
        hop_limit: 64,
        dscp_ecn: 0,
        flow_label: 0x1_2345,
        payload_bytes: u16::try_from(payload.len()).expect("a length within one packet"),
    };
    header.emit(frame[IP_AT..].first_chunk_mut().expect("a buffer for the header"));
    frame.extend_from_slice(payload);
    frame
}

/// Target, protocol, payload and the pseudo-header's sum of a packet of the stack; `None` if it is not IP.
pub fn sent_packet(kind: u16, packet: &[u8]) -> Option<(IpAddr, u8, &[u8], Sum)> {
    match kind {
        ethernet::KIND_IPV4 => {
            let (ip, _, payload) = ipv4::Header::parse(packet).expect("a valid IPv4 header");
            assert_eq!(ip.source, STACK_IP);
            let pseudo = checksum::pseudo_v4(ip.source, ip.target, ip.protocol, payload.len() as u32);
            Some((ip.target.into(), ip.protocol, payload, pseudo))
        }
        ethernet::KIND_IPV6 => {
            let (ip, _, payload) = ipv6::Header::parse(packet).expect("a valid IPv6 header");
            assert_eq!((ip.source, usize::from(ip.payload_bytes)), (STACK_IP6, packet.len() - 40));
            let pseudo = checksum::pseudo_v6(ip.source, ip.target, ip.protocol, payload.len() as u32);
            Some((ip.target.into(), ip.protocol, payload, pseudo))
        }
        _ => None,
    }
}

/// The pseudo-header's sum of a segment to the stack, `bytes` long.
fn pseudo(source: IpAddr, bytes: usize) -> Sum {
    let bytes = u32::try_from(bytes).expect("a length within one packet");
    match source {
        IpAddr::V4(source) => checksum::pseudo_v4(source, STACK_IP, ipv4::PROTOCOL_TCP, bytes),
        IpAddr::V6(source) => checksum::pseudo_v6(source, STACK_IP6, ipv4::PROTOCOL_TCP, bytes),
    }
}

/// A segment to the stack's address of this family. `raw_options`, padded with zeros, replaces the options.
pub fn segment(
    source: impl Into<IpAddr>,
    header: &Header,
    payload: &[u8],
    raw_options: Option<&[u8]>,
) -> Vec<u8> {
    let source = source.into();
    let bare = Header { options: Options::default(), ..*header };
    let header = if raw_options.is_some() { &bare } else { header };
    let mut tcp = vec![0; header.header_bytes()];
    tcp.extend_from_slice(payload);
    let sum = pseudo(source, tcp.len());
    header.emit(&mut tcp, payload.len(), sum);
    if let Some(options) = raw_options {
        let mut options = options.to_vec();
        options.resize(options.len().next_multiple_of(4), 0);
        assert!(options.len() <= 40, "options should fit the 40 bytes of a header");
        tcp[12] = (((20 + options.len()) / 4) << 4) as u8;
        tcp.splice(20..20, options);
        tcp[16..18].fill(0);
        let check = pseudo(source, tcp.len()).add_bytes(&tcp).finish();
        tcp[16..18].copy_from_slice(&check.to_be_bytes());
    }
    match source {
        IpAddr::V4(source) => packet(source, STACK_IP, ipv4::PROTOCOL_TCP, &tcp),
        IpAddr::V6(source) => packet6(source, STACK_IP6, ipv4::PROTOCOL_TCP, &tcp),
    }
}

/// Corrects the checksums of IPv4 and TCP after a test has changed a frame.
pub fn fix_checksums(frame: &mut [u8]) {
    if frame[12..14] == ethernet::KIND_IPV6.to_be_bytes() {
        return fix_checksum6(frame);
    }
    let header_bytes = usize::from(frame[IP_AT] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([frame[IP_AT + 2], frame[IP_AT + 3]]));
    if header_bytes < 20 || total < header_bytes + 20 || IP_AT + total > frame.len() {
        return;
    }
    fix_ip_checksum(frame);
    let address = |at: usize| Ipv4Addr::from([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
    let (source, target, tcp_at) = (address(IP_AT + 12), address(IP_AT + 16), IP_AT + header_bytes);
    let pseudo = checksum::pseudo_v4(source, target, frame[IP_AT + 9], (total - header_bytes) as u32);
    frame[tcp_at + 16..tcp_at + 18].fill(0);
    let check = pseudo.add_bytes(&frame[tcp_at..IP_AT + total]).finish();
    frame[tcp_at + 16..tcp_at + 18].copy_from_slice(&check.to_be_bytes());
}

/// Corrects the checksum of TCP over IPv6 without extension headers.
fn fix_checksum6(frame: &mut [u8]) {
    let bytes = usize::from(u16::from_be_bytes([frame[IP_AT + 4], frame[IP_AT + 5]]));
    if bytes < 20 || TCP_AT6 + bytes > frame.len() {
        return;
    }
    let (source, target) = (address6(frame, IP_AT + 8), address6(frame, IP_AT + 24));
    let pseudo = checksum::pseudo_v6(source, target, frame[IP_AT + 6], bytes as u32);
    frame[TCP_AT6 + 16..TCP_AT6 + 18].fill(0);
    let check = pseudo.add_bytes(&frame[TCP_AT6..TCP_AT6 + bytes]).finish();
    frame[TCP_AT6 + 16..TCP_AT6 + 18].copy_from_slice(&check.to_be_bytes());
}

fn address6(frame: &[u8], at: usize) -> Ipv6Addr {
    Ipv6Addr::from(*frame[at..].first_chunk::<16>().expect("an address within the header"))
}

/// Corrects the checksum of IPv4; the frame must hold the whole IPv4 header.
pub fn fix_ip_checksum(frame: &mut [u8]) {
    let end = IP_AT + usize::from(frame[IP_AT] & 15) * 4;
    frame[IP_AT + 10..IP_AT + 12].fill(0);
    let check = checksum::Sum::ZERO.add_bytes(&frame[IP_AT..end]).finish();
    frame[IP_AT + 10..IP_AT + 12].copy_from_slice(&check.to_be_bytes());
}

/// An ARP packet to the stack.
pub fn arp(operation: arp::Operation, sender: (Mac, Ipv4Addr), target_ip: Ipv4Addr) -> Vec<u8> {
    let is_request = operation == arp::Operation::Request;
    let target = if is_request { Mac::BROADCAST } else { STACK_MAC };
    let target_mac = if is_request { Mac::ZERO } else { STACK_MAC };
    let packet = arp::Packet { operation, sender_mac: sender.0, sender_ip: sender.1, target_mac, target_ip };
    let mut frame = vec![0; ethernet::HEADER_BYTES + arp::BYTES];
    let header = ethernet::Header { target, source: sender.0, kind: ethernet::KIND_ARP };
    header.emit(frame.first_chunk_mut().expect("a buffer for the header"));
    packet.emit(frame[ethernet::HEADER_BYTES..].first_chunk_mut().expect("a buffer for the header"));
    frame
}

/// An ICMPv6 message to the stack.
pub fn icmp6(source: Ipv6Addr, message: &icmp::v6::Message<'_>) -> Vec<u8> {
    let mut bytes = vec![0; message.bytes()];
    let length = u32::try_from(bytes.len()).expect("a length within one packet");
    message.emit(&mut bytes, checksum::pseudo_v6(source, STACK_IP6, ipv6::PROTOCOL_ICMP, length));
    packet6(source, STACK_IP6, ipv6::PROTOCOL_ICMP, &bytes)
}

/// An ICMP message to the stack.
pub fn icmp(source: Ipv4Addr, message: &icmp::v4::Message<'_>) -> Vec<u8> {
    let mut bytes = vec![0; message.bytes()];
    message.emit(&mut bytes);
    packet(source, STACK_IP, ipv4::PROTOCOL_ICMP, &bytes)
}
