//! Tunnels to servers of other racks: IP-in-IP (RFC 2003, RFC 2473, RFC 4213), in host mode.
//!
//! The arbiter of a flow wraps the client's packets for a server that is marked as encapsulated. That server's own program
//! unwraps them: `unwrap`.

use alloc::vec::Vec;

use spillway_wire::packet::checksum::Sum;
use spillway_wire::packet::ethernet::{KIND_IPV4, KIND_IPV6, Mac};

use crate::address::Address;
use crate::parse::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, Network, PROTOCOL_IPV4, PROTOCOL_IPV6, u16_at};
use crate::rewrite;

/// Hop limit of the outer header, and of ICMP errors.
pub(crate) const HOP_LIMIT: u8 = 64;
/// The flag *don't fragment* of an IPv4 header.
pub(crate) const DONT_FRAGMENT: u16 = 0x4000;
/// The bits of the traffic class that the outer header gets: DSCP without ECN, so that the receiver need not transfer a mark
/// of congestion (the compatibility mode of RFC 6040 §4.1).
const DSCP: u8 = 0xfc;

/// A tunnel from the local server to another one. Both addresses have one family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tunnel {
    pub(crate) source: Address,
    pub(crate) target: Address,
    /// Ethernet address of the router on the way to the server, or the server's own.
    pub(crate) next_hop: Mac,
}

impl Tunnel {
    /// Length of the longest IP packet that fits into the tunnel, with its header.
    pub(crate) fn packet_bytes_max(&self, mtu: u16) -> usize {
        usize::from(mtu).saturating_sub(self.header_bytes())
    }

    fn header_bytes(&self) -> usize {
        if self.target.is_ipv4() { IPV4_HEADER_BYTES } else { IPV6_HEADER_BYTES }
    }

    /// Puts a frame's IP packet, which fits into the tunnel, behind an outer header, and addresses the frame to the next hop.
    pub(crate) fn wrap(&self, frame: &mut Vec<u8>, network: Network) {
        let inner_bytes = network.bytes(frame).ok().and_then(|bytes| u16::try_from(bytes).ok());
        debug_assert!(inner_bytes.is_some(), "the caller has compared the length with the MTU");
        let protocol = if network.is_ipv4 { PROTOCOL_IPV4 } else { PROTOCOL_IPV6 };
        let class = traffic_class(frame, network) & DSCP;
        let outer = ip_header(self.source, self.target, class, protocol, inner_bytes.unwrap_or(0));
        let kind = if self.target.is_ipv4() { KIND_IPV4 } else { KIND_IPV6 };
        rewrite::set_ethernet_kind(frame, network, kind);
        frame.splice(network.at..network.at, outer);
        rewrite::set_target_mac(frame, self.next_hop);
    }
}

/// An IP header that no router may fragment. `bytes`: of what follows the header; with an IPv4 header at most 65,515.
pub(crate) fn ip_header(source: Address, target: Address, class: u8, protocol: u8, bytes: u16) -> Vec<u8> {
    let mut header = Vec::with_capacity(IPV6_HEADER_BYTES);
    if let (Some(source), Some(target)) = (source.ipv4(), target.ipv4()) {
        let [total_high, total_low] = bytes.saturating_add(20).to_be_bytes();
        let [flags, _] = DONT_FRAGMENT.to_be_bytes();
        // A packet that is never fragmented needs no identification (RFC 6864 §4.1).
        header.extend([0x45, class, total_high, total_low, 0, 0, flags, 0, HOP_LIMIT, protocol, 0, 0]);
        header.extend(source.octets());
        header.extend(target.octets());
        let check = Sum::ZERO.add_bytes(&header).finish();
        header[10..12].copy_from_slice(&check.to_be_bytes());
    } else {
        let [high, low] = bytes.to_be_bytes();
        header.extend([0x60 | class >> 4, class << 4, 0, 0, high, low, protocol, HOP_LIMIT]);
        header.extend(source.0);
        header.extend(target.0);
    }
    header
}

fn traffic_class(frame: &[u8], network: Network) -> u8 {
    let word = u16_at(frame, network.at).unwrap_or(0);
    let [_, class] = if network.is_ipv4 { word } else { word >> 4 }.to_be_bytes();
    class
}
