//! TCP packets of flows: only the owner is heard, and clients reach the owner or the target.

use spillway_transport::Time;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::Endpoint;

use crate::config::{Place, PortId};
use crate::flow::FlowKey;
use crate::forward;
use crate::parse::{Packet, Segment, Short, Transport, source_mac, target_mac};
use crate::rewrite::{self, End};
use crate::state::State;
use crate::tables::Tables;
use crate::verdict::{Decision, Verdict};

/// What to do with a packet of a flow.
enum Heard {
    /// The sender does not own the flow.
    No,
    /// The flow has no entry, and the sender is its original owner.
    Original,
    /// The owner's packet is rewritten, so that it seems to come from the service endpoint at the original owner.
    Owner { service: Endpoint, mac: Mac },
}

/// A packet from a server's port whose source is a place.
pub(crate) fn from_place(
    tables: &Tables,
    state: &mut State,
    now: Time,
    port: PortId,
    frame: &mut [u8],
    (packet, tcp): (&Packet, &Transport),
    place: Place,
) -> Decision {
    let key = FlowKey { client: tcp.target, service: place.service };
    let Ok(mac) = source_mac(frame) else { return Decision::drop(Verdict::DropShort) };
    let is_on_port = |server| tables.sender(server).is_some_and(|server| server.port == port);
    let heard = match state.settled(key, now) {
        None => {
            let is_original = place.is_endpoint()
                && is_on_port(place.server)
                && tables.sender(place.server).is_some_and(|server| server.mac == mac);
            if is_original { Heard::Original } else { Heard::No }
        }
        Some(entry) => {
            let owner = entry.owner();
            let is_owner = is_on_port(owner.server) && owner.mac == mac && owner.at == tcp.source;
            // The source's kernel resets a connection that has just been exported when it receives packets that passed
            // the switch before. A source that really resets the connection owns the flow again first.
            let is_reset = || packet.segment(frame, tcp).is_ok_and(|segment| segment.flags.has_rst());
            if is_owner && !(entry.is_held() && is_reset()) {
                let segment = match unfragmented(frame, packet, tcp) {
                    Ok(segment) => segment,
                    Err(verdict) => return Decision::drop(verdict),
                };
                entry.owner_packet(now, &segment);
                Heard::Owner { service: place.service, mac: entry.original().mac }
            } else {
                Heard::No
            }
        }
    };
    match heard {
        Heard::No => Decision::drop(Verdict::DropNotOwner),
        Heard::Original => forward::plain(tables, port, frame, packet),
        Heard::Owner { service, mac } => {
            rewrite::set_tcp_end(frame, packet.network, tcp, End::Source, service);
            rewrite::set_source_mac(frame, mac);
            let decision = forward::plain(tables, port, frame, packet);
            match decision.verdict {
                Verdict::Switched | Verdict::Routed => Decision { verdict: Verdict::FromOwner, ..decision },
                _ => decision,
            }
        }
    }
}

/// Any other TCP packet: perhaps a client's.
pub(crate) fn from_client(
    tables: &Tables,
    state: &mut State,
    now: Time,
    port: PortId,
    frame: &mut [u8],
    packet: &Packet,
    tcp: &Transport,
) -> Decision {
    let key = FlowKey { client: tcp.source, service: tcp.target };
    let Some(entry) = state.settled(key, now) else {
        return forward::plain(tables, port, frame, packet);
    };
    let is_opening = packet.segment(frame, tcp).is_ok_and(|segment| segment.flags.is_opening());
    if is_opening && entry.has_both_fins() {
        state.flows.remove(&key);
        return forward::plain(tables, port, frame, packet);
    }
    let segment = match unfragmented(frame, packet, tcp) {
        Ok(segment) => segment,
        Err(verdict) => return Decision::drop(verdict),
    };
    entry.client_packet(now, &segment);
    let (site, is_held) = (*entry.receiver(), entry.is_held());
    let Some(egress) = tables.sender(site.server).map(|server| server.port) else {
        return Decision::drop(Verdict::DropUnknownStation);
    };
    if egress == port {
        return Decision::drop(Verdict::DropSamePort);
    }
    let own_mac = tables.port(port).map(|port| port.mac);
    if target_mac(frame).ok() == own_mac {
        if rewrite::hop_limit(frame, packet.network) <= 1 {
            return Decision::pass();
        }
        forward::route_through(tables, frame, packet.network, egress);
    }
    rewrite::set_tcp_end(frame, packet.network, tcp, End::Target, site.at);
    rewrite::set_target_mac(frame, site.mac);
    Decision::to(if is_held { Verdict::ToTarget } else { Verdict::ToOwner }, egress)
}

/// The segment of a packet that can be rewritten: a whole packet with a complete TCP header.
fn unfragmented(frame: &[u8], packet: &Packet, tcp: &Transport) -> Result<Segment, Verdict> {
    if tcp.is_fragment {
        return Err(Verdict::DropFragment);
    }
    packet.segment(frame, tcp).map_err(|Short| Verdict::DropShort)
}
