//! Changes single fields of a frame, and updates checksums incrementally (RFC 1624): a wrong checksum stays wrong.
//!
//! A field that already has its new value leaves the checksums as they are: RFC 1624 would turn 0xffff into 0.

use spillway_wire::packet::checksum::{adjust_u16, adjust_u32, pseudo_v4, pseudo_v6};
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::Endpoint;

use crate::address::Address;
use crate::parse::{Network, PROTOCOL_UDP, Packet, Transport, array, u16_at};
use crate::quote::Quote;

const IPV4_HOP_LIMIT_AT: usize = 8;
const IPV4_CHECKSUM_AT: usize = 10;
const IPV6_HOP_LIMIT_AT: usize = 7;
const TCP_CHECKSUM_AT: usize = 16;
const UDP_CHECKSUM_AT: usize = 6;
const ICMP_CHECKSUM_AT: usize = 2;

/// One end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Source,
    Target,
}

/// Writes the Ethernet destination.
pub(crate) fn set_target_mac(frame: &mut [u8], mac: Mac) {
    put(frame, 0, mac.0);
}

/// Writes the Ethernet source.
pub(crate) fn set_source_mac(frame: &mut [u8], mac: Mac) {
    put(frame, 6, mac.0);
}

/// Writes the Ethernet type before the IP header.
pub(crate) fn set_ethernet_kind(frame: &mut [u8], network: Network, kind: u16) {
    put(frame, network.at - 2, kind.to_be_bytes());
}

/// Sends a frame back: exchanges its Ethernet addresses.
pub(crate) fn turn_around_ethernet(frame: &mut [u8]) {
    swap::<6>(frame, 0, 6);
}

/// The hop limit, in IPv4 the time to live.
pub(crate) fn hop_limit(frame: &[u8], network: Network) -> u8 {
    let at = if network.is_ipv4 { IPV4_HOP_LIMIT_AT } else { IPV6_HOP_LIMIT_AT };
    frame.get(network.at + at).copied().unwrap_or(0)
}

/// Writes the hop limit.
pub(crate) fn set_hop_limit(frame: &mut [u8], network: Network, hops: u8) {
    let Network { is_ipv4, at } = network;
    if !is_ipv4 {
        return put(frame, at + IPV6_HOP_LIMIT_AT, [hops]);
    }
    // The checksum adds 16-bit words: time to live and protocol are one of them.
    let Ok(from) = u16_at(frame, at + IPV4_HOP_LIMIT_AT) else { return };
    put(frame, at + IPV4_HOP_LIMIT_AT, [hops]);
    let to = from & 0xff | u16::from(hops) << 8;
    if from != to {
        adjust(frame, at + IPV4_CHECKSUM_AT, |check| adjust_u16(check, from, to));
    }
}

/// Writes the address and port at one end of a TCP packet, whose TCP header must be complete.
pub(crate) fn set_tcp_end(frame: &mut [u8], network: Network, tcp: &Transport, end: End, to: Endpoint) {
    let check_at = tcp.at + TCP_CHECKSUM_AT;
    set_address(frame, network, end, to.into(), Some(check_at));
    let port_at = tcp.at + if end == End::Source { 0 } else { 2 };
    let Ok(from) = u16_at(frame, port_at) else { return };
    if from != to.port() {
        put(frame, port_at, to.port().to_be_bytes());
        adjust(frame, check_at, |check| adjust_u16(check, from, to.port()));
    }
}

/// Addresses an ICMP error to the sender of the segment that it quotes: writes the error's destination, and the source
/// of the quoted packet. All checksums that are present are updated, in the order in which one covers another.
pub(crate) fn set_quoted_source(frame: &mut [u8], network: Network, quote: &Quote, to: Endpoint) {
    let check_at = quote.error_at + ICMP_CHECKSUM_AT;
    let is_ipv4 = network.is_ipv4;
    // Only the checksum of ICMPv6 covers the addresses of its own packet.
    set_address(frame, network, End::Target, to.into(), (!is_ipv4).then_some(check_at));
    let (address_at, address) = if is_ipv4 { (12, &to.address()[12..]) } else { (8, &to.address()[..]) };
    let words = address.as_chunks::<2>().0.iter().map(|word| u16::from_be_bytes(*word));
    let ip_check_at = is_ipv4.then_some(quote.network_at + IPV4_CHECKSUM_AT);
    let tcp_check_at = quote.tcp_at + TCP_CHECKSUM_AT;
    let has_tcp_check = tcp_check_at + 2 <= quote.end.min(frame.len());
    let tcp_check_at = has_tcp_check.then_some(tcp_check_at);
    for (index, word) in words.enumerate() {
        let checks = [ip_check_at, tcp_check_at];
        set_quoted_word(frame, quote.network_at + address_at + 2 * index, word, checks, check_at);
    }
    set_quoted_word(frame, quote.tcp_at, to.port(), [tcp_check_at, None], check_at);
}

/// Writes a word of a quoted packet. `checks`: the packet's own checksums that cover it. `error_check`: the error's, which
/// covers word and checksums.
fn set_quoted_word(frame: &mut [u8], at: usize, to: u16, checks: [Option<usize>; 2], error_check: usize) {
    let Ok(from) = u16_at(frame, at) else { return };
    if from == to {
        return;
    }
    put(frame, at, to.to_be_bytes());
    adjust(frame, error_check, |check| adjust_u16(check, from, to));
    for at in checks.into_iter().flatten() {
        let Ok(before) = u16_at(frame, at) else { return };
        let after = adjust_u16(before, from, to);
        if before != after {
            put(frame, at, after.to_be_bytes());
            adjust(frame, error_check, |check| adjust_u16(check, before, after));
        }
    }
}

/// Sends a UDP packet back: exchanges Ethernet addresses, IP addresses and ports.
pub(crate) fn turn_around(frame: &mut [u8], network: Network, udp: &Transport) {
    turn_around_ethernet(frame);
    if network.is_ipv4 {
        swap::<4>(frame, network.at + 12, network.at + 16);
    } else {
        swap::<16>(frame, network.at + 8, network.at + 24);
    }
    swap::<2>(frame, udp.at, udp.at + 2);
}

/// Writes the ends of a UDP packet. The UDP checksum is not updated: see [`set_udp_checksum`].
pub(crate) fn set_udp_ends(
    frame: &mut [u8],
    network: Network,
    udp: &Transport,
    from: Endpoint,
    to: Endpoint,
) {
    set_address(frame, network, End::Source, from.into(), None);
    set_address(frame, network, End::Target, to.into(), None);
    put(frame, udp.at, from.port().to_be_bytes());
    put(frame, udp.at + 2, to.port().to_be_bytes());
}

/// Computes the checksum of a UDP packet of `bytes` bytes with its header. 0 is sent as 0xffff, because 0 means that a
/// packet has no checksum (RFC 768).
pub(crate) fn set_udp_checksum(frame: &mut [u8], packet: &Packet, udp: &Transport, bytes: u16) {
    put(frame, udp.at + UDP_CHECKSUM_AT, [0, 0]);
    let at = packet.network.at;
    let pseudo = if packet.network.is_ipv4 {
        let (Ok(source), Ok(target)) = (array::<4>(frame, at + 12), array::<4>(frame, at + 16)) else {
            return;
        };
        pseudo_v4(source.into(), target.into(), PROTOCOL_UDP, bytes.into())
    } else {
        let (Ok(source), Ok(target)) = (array::<16>(frame, at + 8), array::<16>(frame, at + 24)) else {
            return;
        };
        pseudo_v6(source.into(), target.into(), PROTOCOL_UDP, bytes.into())
    };
    let Some(datagram) = frame.get(udp.at..udp.at + usize::from(bytes)) else { return };
    let check = match pseudo.add_bytes(datagram).finish() {
        0 => 0xffff,
        check => check,
    };
    put(frame, udp.at + UDP_CHECKSUM_AT, check.to_be_bytes());
}

/// Writes an IP address word by word, with the checksums of the IPv4 header and of the packet's upper layer.
fn set_address(frame: &mut [u8], network: Network, end: End, to: Address, upper_check_at: Option<usize>) {
    let Network { is_ipv4, at } = network;
    let (first, to) = match (is_ipv4, end) {
        (true, End::Source) => (12, &to.0[12..]),
        (true, End::Target) => (16, &to.0[12..]),
        (false, End::Source) => (8, &to.0[..]),
        (false, End::Target) => (24, &to.0[..]),
    };
    for (index, word) in to.as_chunks::<4>().0.iter().enumerate() {
        let word_at = at + first + 4 * index;
        let Ok(from) = array::<4>(frame, word_at) else { return };
        if from == *word {
            continue;
        }
        put(frame, word_at, *word);
        let (from, to) = (u32::from_be_bytes(from), u32::from_be_bytes(*word));
        if is_ipv4 {
            adjust(frame, at + IPV4_CHECKSUM_AT, |check| adjust_u32(check, from, to));
        }
        if let Some(check_at) = upper_check_at {
            adjust(frame, check_at, |check| adjust_u32(check, from, to));
        }
    }
}

fn adjust(frame: &mut [u8], at: usize, update: impl FnOnce(u16) -> u16) {
    if let Ok(check) = u16_at(frame, at) {
        put(frame, at, update(check).to_be_bytes());
    }
}

fn swap<const N: usize>(frame: &mut [u8], one: usize, other: usize) {
    if let (Ok(first), Ok(second)) = (array::<N>(frame, one), array::<N>(frame, other)) {
        put(frame, one, second);
        put(frame, other, first);
    }
}

fn put<const N: usize>(frame: &mut [u8], at: usize, bytes: [u8; N]) {
    let field = frame.get_mut(at..).and_then(|rest| rest.first_chunk_mut());
    debug_assert!(field.is_some(), "the parser has checked that the header at {at} is complete");
    if let Some(field) = field {
        *field = bytes;
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::parse::{Parsed, Upper, parse};
    use crate::test_config::endpoint;

    /// A TCP packet from 10.0.0.1:80 to 10.0.0.2:81 with these checksums.
    fn tcp(header_check: u16, tcp_check: u16) -> Vec<u8> {
        let mut frame =
            alloc::vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6];
        frame.extend(header_check.to_be_bytes());
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 0, 81, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0]);
        frame.extend(tcp_check.to_be_bytes());
        frame.extend([0, 0]);
        frame
    }

    fn headers(frame: &[u8]) -> (Network, Transport) {
        let Ok(Parsed::Ip(packet)) = parse(frame) else { panic!("this is an IP packet") };
        let Upper::Tcp(tcp) = packet.upper else { panic!("this is a TCP packet") };
        (packet.network, tcp)
    }

    #[test]
    fn equal_values_leave_checksums_as_they_are() {
        // RFC 1624 would turn ffff into 0.
        for check in [0, 0xffff, 0x1234] {
            let before = tcp(check, check);
            let mut frame = before.clone();
            let (network, transport) = headers(&frame);
            set_tcp_end(&mut frame, network, &transport, End::Source, endpoint("10.0.0.1:80"));
            set_tcp_end(&mut frame, network, &transport, End::Target, endpoint("10.0.0.2:81"));
            set_hop_limit(&mut frame, network, 64);
            assert_eq!(frame, before);
        }
    }

    #[test]
    fn a_port_changes_only_the_tcp_checksum() {
        let mut frame = tcp(0x1111, 0x2222);
        let (network, transport) = headers(&frame);
        set_tcp_end(&mut frame, network, &transport, End::Target, endpoint("10.0.0.2:83"));
        assert_eq!(frame, {
            let mut expected = tcp(0x1111, 0x2220);
            expected[37] = 83;
            expected
        });
    }

    #[test]
    fn an_address_changes_both_checksums_and_a_hop_the_headers() {
        let mut frame = tcp(0x1111, 0x2222);
        let (network, transport) = headers(&frame);
        set_tcp_end(&mut frame, network, &transport, End::Source, endpoint("10.0.0.5:80"));
        let mut expected = tcp(0x110d, 0x221e);
        expected[29] = 5;
        assert_eq!(frame, expected);
        set_hop_limit(&mut frame, network, 63);
        (expected[22], expected[24], expected[25]) = (63, 0x12, 0x0d);
        assert_eq!((frame, hop_limit(&expected, network)), (expected.clone(), 63));
    }

    #[test]
    fn a_udp_checksum_of_zero_is_sent_as_ffff() {
        let mut frame =
            alloc::vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0];
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 0, 81, 0, 10, 0, 0, 0, 0]);
        let Ok(Parsed::Ip(packet)) = parse(&frame) else { panic!("this is an IP packet") };
        let Upper::Udp(udp) = packet.upper else { panic!("this is a UDP packet") };
        set_udp_checksum(&mut frame, &packet, &udp, 10);
        let check = u16::from_be_bytes([frame[40], frame[41]]);
        // The payload that makes the sum ffff, so that its complement is 0.
        frame[42..44].copy_from_slice(&check.to_be_bytes());
        set_udp_checksum(&mut frame, &packet, &udp, 10);
        assert_eq!(frame[40..42], [0xff, 0xff]);
    }
}
