//! TCP packets of flows (rule 4): of the servers' packets only the owner's pass; clients' packets go to the owner, or
//! to the target while the flow is held.

use spillway_wire::packet::ethernet::Mac;

use crate::arrival::Arrival;
use crate::config::Place;
use crate::delivery::{self, Receiver};
use crate::flow::FlowKey;
use crate::forward;
use crate::parse::{Packet, Segment, Short, Transport, source_mac};
use crate::rewrite::{self, End};
use crate::state::State;
use crate::tables::Tables;
use crate::verdict::{Decision, Verdict};

/// The source of a server's packet that passes (rule 4a).
enum Source {
    /// The flow has no entry, and the sender is its original owner.
    Original,
    /// The sender is the entry's owner. Its packet is rewritten, so that it seems to come from the original owner.
    Owner { original_mac: Mac },
}

/// A packet from a server's port whose source is a place.
pub(crate) fn from_place(
    tables: &Tables,
    state: &mut State,
    arrival: &mut Arrival<'_>,
    (packet, tcp): (&Packet, &Transport),
    place: Place,
) -> Decision {
    match check_source(tables, state, arrival, (packet, tcp), place) {
        Err(verdict) => Decision::drop(verdict),
        Ok(Source::Original) => forward::plain(tables, arrival, packet),
        Ok(Source::Owner { original_mac }) => {
            rewrite::set_tcp_end(arrival.frame, packet.network, tcp, End::Source, place.service);
            if tables.is_host() {
                return Decision::up(Verdict::FromOwner);
            }
            rewrite::set_source_mac(arrival.frame, original_mac);
            let decision = forward::plain(tables, arrival, packet);
            match decision.verdict {
                Verdict::Switched | Verdict::Routed => Decision { verdict: Verdict::FromOwner, ..decision },
                _ => decision,
            }
        }
    }
}

/// Whether a server's packet passes; the error is the verdict with which it is dropped. Records FIN, RST and time in
/// the entry.
fn check_source(
    tables: &Tables,
    state: &mut State,
    arrival: &Arrival<'_>,
    (packet, tcp): (&Packet, &Transport),
    place: Place,
) -> Result<Source, Verdict> {
    let &Arrival { now, port, ref frame } = arrival;
    let mac = source_mac(frame).map_err(|Short| Verdict::DropShort)?;
    let server_on_port = |server| tables.sender(server).filter(|server| server.port == port);
    // Whatever leaves a host through its interface is the local server's.
    let is_its_mac = |other| tables.is_local(port) || other == mac;
    let key = FlowKey { client: tcp.target, service: place.service };
    let Some(entry) = state.settled(key, now) else {
        let original =
            server_on_port(place.server).filter(|server| place.is_endpoint() && is_its_mac(server.mac));
        return original.map(|_| Source::Original).ok_or(Verdict::DropNotOwner);
    };
    let owner = entry.owner();
    if server_on_port(owner.server).is_none() || !is_its_mac(owner.mac) || owner.at != tcp.source {
        return Err(Verdict::DropNotOwner);
    }
    // After the export, packets that had already passed the switch make the source's kernel answer with RST. A source
    // that means to reset the connection takes the flow back first, by *own*.
    let is_reset = packet.segment(frame, tcp).is_ok_and(|segment| segment.flags.has_rst());
    if entry.is_held() && is_reset {
        return Err(Verdict::DropNotOwner);
    }
    entry.owner_packet(now, &unfragmented(frame, packet, tcp)?);
    Ok(Source::Owner { original_mac: entry.original().mac })
}

/// Any other TCP packet (rule 4b): a client's, if the flow has an entry.
pub(crate) fn from_client(
    tables: &Tables,
    state: &mut State,
    arrival: &mut Arrival<'_>,
    packet: &Packet,
    tcp: &Transport,
) -> Decision {
    let key = FlowKey { client: tcp.source, service: tcp.target };
    let Some(entry) = state.settled(key, arrival.now) else {
        return forward::plain(tables, arrival, packet);
    };
    let is_opening = packet.segment(arrival.frame, tcp).is_ok_and(|segment| segment.flags.is_opening());
    if is_opening && entry.is_closed() {
        state.flows.remove(&key);
        return forward::plain(tables, arrival, packet);
    }
    let segment = match unfragmented(arrival.frame, packet, tcp) {
        Ok(segment) => segment,
        Err(verdict) => return Decision::drop(verdict),
    };
    entry.client_packet(arrival.now, &segment);
    let receiver = Receiver::of(entry);
    delivery::to_site(tables, arrival, packet, &receiver, |frame, site| {
        rewrite::set_tcp_end(frame, packet.network, tcp, End::Target, site.at);
    })
}

/// The segment of a packet that can be rewritten: a whole packet with a complete TCP header.
pub(crate) fn unfragmented(frame: &[u8], packet: &Packet, tcp: &Transport) -> Result<Segment, Verdict> {
    if tcp.is_fragment {
        return Err(Verdict::DropFragment);
    }
    packet.segment(frame, tcp).map_err(|Short| Verdict::DropShort)
}
