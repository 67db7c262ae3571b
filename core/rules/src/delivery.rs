//! Sends a client's packet to the server that has its connection, or that is about to import it.

use crate::arrival::Arrival;
use crate::flow::{Entry, Site};
use crate::forward;
use crate::parse::{Packet, target_mac};
use crate::rewrite;
use crate::tables::Tables;
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
        // The kernel must not send an ICMP error about a connection that this host does not have.
        if rewrite::hop_limit(arrival.frame, packet.network) <= 1 {
            return Decision::drop(Verdict::DropNoRoute);
        }
        forward::route_through(tables, arrival.frame, packet.network, egress);
    } else if egress == arrival.port {
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
