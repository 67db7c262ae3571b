//! Sends a client's packet to the server that has its connection, or that is about to import it.

use crate::arrival::Arrival;
use crate::config::PortId;
use crate::flow::{Entry, Site};
use crate::forward;
use crate::parse::{Packet, target_mac};
use crate::rewrite;
use crate::tables::{Tables, Way};
use crate::too_long;
use crate::verdict::{Decision, Verdict};

/// The server that gets the client's packets of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receiver {
    site: Site,
    /// The server is the target of a move, and buffers the packets.
    is_target: bool,
}

impl Receiver {
    pub(crate) fn of(entry: &Entry) -> Receiver {
        Receiver { site: *entry.receiver(), is_target: entry.is_held() }
    }

    fn verdict(&self) -> Verdict {
        if self.is_target { Verdict::ToTarget } else { Verdict::ToOwner }
    }
}

/// Sends a packet to the receiver of its flow. `rewrite` writes the address and port at which the server has the
/// connection.
pub(crate) fn to_site(
    tables: &Tables,
    arrival: &mut Arrival<'_>,
    packet: &Packet,
    receiver: &Receiver,
    rewrite: impl FnOnce(&mut [u8], &Site),
) -> Decision {
    let site = &receiver.site;
    let Some(egress) = tables.sender(site.server).map(|server| server.port) else {
        return Decision::drop(Verdict::DropUnknownStation);
    };
    if tables.is_local(egress) {
        rewrite(arrival.frame, site);
        return Decision::up(receiver.verdict());
    }
    if tables.is_host() {
        return from_host(tables, arrival, packet, receiver, egress, rewrite);
    }
    if egress == arrival.port {
        return Decision::drop(Verdict::DropSamePort);
    } else if target_mac(arrival.frame).ok() == tables.port(arrival.port).map(|port| port.mac) {
        if rewrite::hop_limit(arrival.frame, packet.network) <= 1 {
            return Decision::pass();
        }
        forward::route_through(tables, arrival.frame, packet.network, egress);
    }
    rewrite(arrival.frame, site);
    rewrite::set_target_mac(arrival.frame, site.mac);
    Decision::to(receiver.verdict(), egress)
}

/// In host mode, sends a packet to a receiver that is another host.
fn from_host(
    tables: &Tables,
    arrival: &mut Arrival<'_>,
    packet: &Packet,
    receiver: &Receiver,
    egress: PortId,
    rewrite: impl FnOnce(&mut [u8], &Site),
) -> Decision {
    let site = &receiver.site;
    // The kernel must not send an ICMP error about a connection that this host does not have.
    if rewrite::hop_limit(arrival.frame, packet.network) <= 1 {
        return Decision::drop(Verdict::DropNoRoute);
    }
    let tunnel = match tables.way_to(site.server) {
        Some(Way::Segment) => None,
        Some(Way::Tunnel(tunnel)) => Some(tunnel),
        None => return Decision::drop(Verdict::DropNoRoute),
    };
    if let Some(tunnel) = tunnel {
        let bytes_max = tunnel.packet_bytes_max(tables.port(egress).map_or(0, |port| port.mtu));
        if too_long::is_too_long(arrival.frame, packet, bytes_max) {
            return too_long::answer(arrival, packet, bytes_max);
        }
    }
    forward::route_through(tables, arrival.frame, packet.network, egress);
    rewrite(arrival.frame, site);
    let Some(tunnel) = tunnel else {
        rewrite::set_target_mac(arrival.frame, site.mac);
        return Decision::to(receiver.verdict(), egress);
    };
    tunnel.wrap(arrival.frame, packet.network);
    Decision::to(Verdict::Encapsulated, egress)
}
