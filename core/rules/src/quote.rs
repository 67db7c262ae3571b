//! What an ICMP error quotes: the beginning of the packet that the error is about.

use spillway_wire::switch::Endpoint;

use crate::parse::{
    IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, Packet, Upper, array,
    u16_at,
};

/// Bytes of an error before the packet that it quotes (RFC 792, RFC 4443 §3).
const HEADER_BYTES: usize = 8;

/// The beginning of a TCP packet that an error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quote {
    /// Offset of the error in the frame.
    pub(crate) error_at: usize,
    /// Offset of the quoted IP header.
    pub(crate) network_at: usize,
    /// Offset of the quoted TCP header, of which at least the ports are present.
    pub(crate) tcp_at: usize,
    /// Offset of the end of the error's packet, as its header states it.
    pub(crate) end: usize,
    /// Ends of the quoted packet.
    pub(crate) source: Endpoint,
    pub(crate) target: Endpoint,
}

/// What an error quotes. `None` if the packet is no error, or if the quoted packet is not whole enough, no TCP packet, or
/// not one that the error's receiver has sent. IPv6 extension headers in it are not parsed.
pub(crate) fn quote(frame: &[u8], packet: &Packet) -> Option<Quote> {
    let Upper::Other { protocol, at: error_at, is_fragment: false } = packet.upper else { return None };
    let is_ipv4 = packet.network.is_ipv4;
    let [kind] = array(frame, error_at).ok()?;
    let is_error = match (is_ipv4, protocol) {
        // Unreachable, time exceeded, parameter problem.
        (true, PROTOCOL_ICMP) => matches!(kind, 3 | 11 | 12),
        // Unreachable, packet too big, time exceeded, parameter problem.
        (false, PROTOCOL_ICMPV6) => matches!(kind, 1..=4),
        _ => false,
    };
    if !is_error {
        return None;
    }
    let network_at = error_at + HEADER_BYTES;
    let (source, target, tcp_at) =
        if is_ipv4 { quoted_ipv4(frame, network_at)? } else { quoted_ipv6(frame, network_at)? };
    let end = packet.network.at + packet.network.bytes(frame).ok()?;
    if source != packet.target.0 || tcp_at + 4 > end {
        return None;
    }
    let source = Endpoint::new(source, u16_at(frame, tcp_at).ok()?);
    let target = Endpoint::new(target, u16_at(frame, tcp_at + 2).ok()?);
    Some(Quote { error_at, network_at, tcp_at, end, source, target })
}

/// Source and destination of a quoted packet, and the offset of its TCP header.
fn quoted_ipv4(frame: &[u8], at: usize) -> Option<([u8; 16], [u8; 16], usize)> {
    let header: [u8; IPV4_HEADER_BYTES] = array(frame, at).ok()?;
    let (version, words) = (header[0] >> 4, usize::from(header[0] & 15));
    let is_later_fragment = u16_at(&header, 6).ok()? & 0x1fff != 0;
    if version != 4 || words < 5 || is_later_fragment || header[9] != PROTOCOL_TCP {
        return None;
    }
    let mapped = |at: usize| {
        let mut address = [0; 16];
        address[10..12].fill(0xff);
        address[12..].copy_from_slice(&header[at..at + 4]);
        address
    };
    Some((mapped(12), mapped(16), at + words * 4))
}

fn quoted_ipv6(frame: &[u8], at: usize) -> Option<([u8; 16], [u8; 16], usize)> {
    let header: [u8; IPV6_HEADER_BYTES] = array(frame, at).ok()?;
    if header[0] >> 4 != 6 || header[6] != PROTOCOL_TCP {
        return None;
    }
    Some((array(&header, 8).ok()?, array(&header, 24).ok()?, at + IPV6_HEADER_BYTES))
}
