//! The end of a tunnel: the local server's program takes the outer header off packets that the arbiter of a service has
//! wrapped (see `tunnel`), in host mode.

use spillway_wire::packet::ethernet::{KIND_IPV4, KIND_IPV6};

use crate::arrival::Arrival;
use crate::parse::{PROTOCOL_IPV4, PROTOCOL_IPV6, Packet, Upper, parse_ip};
use crate::quote::quote;
use crate::rewrite;
use crate::tables::Tables;
use crate::verdict::{Decision, Verdict};

/// Passes a packet to the kernel without its outer header, if the arbiter of a service has sent it through a tunnel to the
/// local server, and the local server may have the connection. `None` for all other packets.
pub(crate) fn from_arbiter(tables: &Tables, arrival: &mut Arrival<'_>, outer: &Packet) -> Option<Decision> {
    let Upper::Other { protocol, at, is_fragment: false } = outer.upper else { return None };
    let is_ipv4 = match protocol {
        PROTOCOL_IPV4 => true,
        PROTOCOL_IPV6 => false,
        _ => return None,
    };
    let local = tables.local_server().filter(|(_, server)| server.address == outer.target);
    let (local, _) = local?;
    let inner = parse_ip(arrival.frame, at, is_ipv4).ok()?;
    let target = match inner.upper {
        Upper::Tcp(tcp) if !tcp.is_fragment => tcp.target,
        _ => quote(arrival.frame, &inner)?.source,
    };
    let place = tables.place(target)?;
    let arbiter = tables.sender(tables.service(place.service)?.server)?;
    let is_from_arbiter = arbiter.is_encapsulated && arbiter.address == outer.source;
    let is_here = place.is_endpoint() || place.server == local;
    if !is_from_arbiter || !is_here || !tables.may_own(arrival.port, place.number) {
        return None;
    }
    let kind = if is_ipv4 { KIND_IPV4 } else { KIND_IPV6 };
    rewrite::set_ethernet_kind(arrival.frame, outer.network, kind);
    arrival.frame.drain(outer.network.at..at);
    Some(Decision::up(Verdict::Decapsulated))
}
