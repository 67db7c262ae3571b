//! Host mode: the switch at a server's own interface (docs/switch.md, On a server's own interface).
//!
//! The rules of a gateway decide on control messages and on packets of flows with an entry. Everything else that arrives
//! passes to the kernel: see [`concerns`], and the checks of the mode in `forward` and `delivery`.

use crate::arrival::Arrival;
use crate::config::{Place, PortId};
use crate::parse::{Packet, Parsed, Transport, Upper, parse, target_mac};
use crate::rewrite::{self, End};
use crate::state::State;
use crate::tables::Tables;
use crate::tcp;
use crate::verdict::{Decision, Verdict};

/// Whether the rules apply to a frame that arrives at the interface: only if it is addressed to the interface. An Ethernet
/// switch floods frames to stations that it does not know; a moved flow's packet must not reach its owner twice.
pub(crate) fn concerns(tables: &Tables, port: PortId, frame: &[u8]) -> bool {
    tables.port(port).is_some_and(|port| target_mac(frame) == Ok(port.mac))
}

/// Decides on a frame that leaves the host: the check of rule 4a for the local server's segments of flows whose arbiter is
/// here, and the service's address for those of flows whose arbiter is elsewhere.
pub(crate) fn egress(tables: &Tables, state: &mut State, arrival: &mut Arrival<'_>) -> Decision {
    let Ok(Parsed::Ip(packet @ Packet { upper: Upper::Tcp(tcp), .. })) = parse(arrival.frame) else {
        return Decision::pass();
    };
    // Segments from another server's address are not checked, even if the local server has taken that address over: only the
    // other server's arbiter knows the owners of these flows.
    let Some(&place) = tables.place(tcp.source).filter(|place| tables.is_local_server(place.server)) else {
        return Decision::pass();
    };
    let Some(service) = tables.service(place.service) else { return Decision::pass() };
    if tables.is_arbitrated(service) {
        tcp::from_place(tables, state, arrival, (&packet, &tcp), place)
    } else {
        from_import(arrival, (&packet, &tcp), place)
    }
}

/// A segment from the place at which the local server imports connections of another server's service.
fn from_import(arrival: &mut Arrival<'_>, (packet, tcp): (&Packet, &Transport), place: Place) -> Decision {
    if let Err(verdict) = tcp::unfragmented(arrival.frame, packet, tcp) {
        return Decision::drop(verdict);
    }
    rewrite::set_tcp_end(arrival.frame, packet.network, tcp, End::Source, place.service);
    Decision::up(Verdict::FromOwner)
}
