//! Forwarding without flows: to configured stations, along routes, and to group addresses.

use spillway_wire::packet::ethernet::Mac;

use crate::address::Address;
use crate::arrival::Arrival;
use crate::config::{Port, PortId};
use crate::parse::{Network, PROTOCOL_ICMPV6, Packet, Parsed, Upper, array, target_mac};
use crate::rewrite;
use crate::tables::Tables;
use crate::verdict::{Action, Decision, Verdict};

/// Type of a neighbour solicitation (RFC 4861 §4.3), and the length of the message without options.
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_SOLICITATION_BYTES: usize = 24;

/// Whether a group address is one that bridges do not forward (IEEE 802.1Q §8.6.3).
pub(crate) fn is_link_local(target: Mac) -> bool {
    matches!(target.0, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f])
}

/// Drops a frame with truncated or invalid headers. In host mode it passes to the kernel.
pub(crate) fn malformed(tables: &Tables) -> Decision {
    if tables.is_host() { Decision::pass() } else { Decision::drop(Verdict::DropShort) }
}

/// Forwards an IP packet.
pub(crate) fn plain(tables: &Tables, arrival: &mut Arrival<'_>, packet: &Packet) -> Decision {
    frame_of(tables, arrival, &Parsed::Ip(*packet))
}

/// Forwards a frame. In host mode it passes to the kernel.
pub(crate) fn frame_of(tables: &Tables, arrival: &mut Arrival<'_>, parsed: &Parsed) -> Decision {
    if tables.is_host() {
        return Decision::pass();
    }
    let (ingress, frame) = (arrival.port, &mut *arrival.frame);
    let Ok(target) = target_mac(frame) else { return Decision::drop(Verdict::DropShort) };
    if tables.port(ingress).is_some_and(|port| port.mac == target) {
        return match parsed {
            Parsed::Ip(packet) if !tables.is_own(packet.target) => route(tables, ingress, frame, packet),
            Parsed::Ip(_) | Parsed::Arp(_) | Parsed::Other | Parsed::ManyTags => Decision::pass(),
        };
    }
    if target.0[0] & 1 != 0 {
        let is_query = queried_address(frame, parsed).is_some_and(|address| tables.is_own(address));
        return if is_query {
            Decision::pass()
        } else {
            Decision { verdict: Verdict::Flooded, action: Action::Flood }
        };
    }
    match tables.station(target) {
        None => Decision::drop(Verdict::DropUnknownStation),
        Some(egress) if egress == ingress => Decision::drop(Verdict::DropSamePort),
        Some(egress) => Decision::to(Verdict::Switched, egress),
    }
}

/// What routing changes in every packet: one hop less, and the Ethernet address of the egress port as source.
pub(crate) fn route_through(tables: &Tables, frame: &mut [u8], network: Network, egress: PortId) {
    let hops = rewrite::hop_limit(frame, network);
    rewrite::set_hop_limit(frame, network, hops.saturating_sub(1));
    if let Some(Port { mac, .. }) = tables.port(egress) {
        rewrite::set_source_mac(frame, *mac);
    }
}

fn route(tables: &Tables, ingress: PortId, frame: &mut [u8], packet: &Packet) -> Decision {
    let is_ipv4 = packet.network.is_ipv4;
    // The host's own link-local addresses are in no table. Its kernel does not forward such packets either.
    if !is_ipv4 && packet.target.is_link_local_ipv6() {
        return Decision::pass();
    }
    if !packet.source.is_routable(is_ipv4) || !packet.target.is_routable(is_ipv4) {
        return Decision::drop(Verdict::DropNoRoute);
    }
    let Some(prefix) = tables.route(packet.network.is_ipv4, packet.target) else {
        return Decision::drop(Verdict::DropNoRoute);
    };
    // The kernel answers with the ICMP error (time exceeded).
    if rewrite::hop_limit(frame, packet.network) <= 1 {
        return Decision::pass();
    }
    if prefix.port == ingress {
        return Decision::drop(Verdict::DropSamePort);
    }
    route_through(tables, frame, packet.network, prefix.port);
    rewrite::set_target_mac(frame, prefix.next_hop);
    Decision::to(Verdict::Routed, prefix.port)
}

/// The address whose Ethernet address a packet asks for: by ARP or by a neighbour solicitation.
fn queried_address(frame: &[u8], parsed: &Parsed) -> Option<Address> {
    let packet = match parsed {
        Parsed::Arp(arp) => return Some(arp.target),
        Parsed::Ip(packet) if !packet.network.is_ipv4 => packet,
        Parsed::Ip(_) | Parsed::Other | Parsed::ManyTags => return None,
    };
    let Upper::Other { protocol: PROTOCOL_ICMPV6, at, is_fragment: false } = packet.upper else {
        return None;
    };
    let message: [u8; NEIGHBOUR_SOLICITATION_BYTES] = array(frame, at).ok()?;
    if message[0] != NEIGHBOUR_SOLICITATION {
        return None;
    }
    array(&message, 8).ok().map(Address)
}
