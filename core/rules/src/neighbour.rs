//! ARP, neighbour discovery and redirects at servers' ports: no server announces an address of another one, or a route.

use crate::address::Address;
use crate::config::PortId;
use crate::parse::{PROTOCOL_ICMP, PROTOCOL_ICMPV6, Packet, Parsed, Upper, array};
use crate::tables::Tables;

/// The messages of neighbour discovery, from router solicitation to redirect (RFC 4861 §4).
const DISCOVERY: core::ops::RangeInclusive<u8> = 133..=137;
/// Types of the messages that announce a route: a router's advertisement, and redirects of both families (RFC 792).
const ROUTER_ADVERTISEMENT: u8 = 134;
const REDIRECT: u8 = 137;
const REDIRECT_IPV4: u8 = 5;
/// Type of the message that announces the Ethernet address of its field *target*, besides that of the sender.
const ADVERTISEMENT: u8 = 136;
/// Offset of the field *target*.
const TARGET_AT: usize = 8;

/// Whether a frame from a server's port announces a route, or the Ethernet address of an address that belongs to servers
/// of other ports, or to the switch.
pub(crate) fn announces_foreign(tables: &Tables, port: PortId, frame: &[u8], parsed: &Parsed) -> bool {
    let is_foreign = |address| !tables.may_announce(port, address);
    let packet = match parsed {
        // Receivers learn the sender's address also from requests.
        Parsed::Arp(arp) => return is_foreign(arp.sender),
        Parsed::Ip(packet) => packet,
        Parsed::Other | Parsed::ManyTags => return false,
    };
    let Upper::Other { protocol, at, .. } = packet.upper else { return false };
    let Ok([kind]) = array(frame, at) else { return false };
    match (packet.network.is_ipv4, protocol) {
        (true, PROTOCOL_ICMP) => kind == REDIRECT_IPV4,
        (false, PROTOCOL_ICMPV6) => discovers_foreign(frame, packet, at, kind, is_foreign),
        _ => false,
    }
}

/// Whether the ICMPv6 message at offset `at` announces a route or such an address.
fn discovers_foreign(
    frame: &[u8],
    packet: &Packet,
    at: usize,
    kind: u8,
    is_foreign: impl Fn(Address) -> bool,
) -> bool {
    match kind {
        ROUTER_ADVERTISEMENT | REDIRECT => true,
        ADVERTISEMENT => {
            let is_target_foreign =
                array(frame, at + TARGET_AT).is_ok_and(|target| is_foreign(Address(target)));
            is_foreign(packet.source) || is_target_foreign
        }
        kind => DISCOVERY.contains(&kind) && is_foreign(packet.source),
    }
}
