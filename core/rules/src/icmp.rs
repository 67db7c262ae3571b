//! ICMP errors that quote a segment of a flow (rule 4c): they go where the flow's packets go, so that path MTU discovery
//! works for connections that have moved.

use crate::arrival::Arrival;
use crate::delivery::{self, Receiver};
use crate::flow::FlowKey;
use crate::forward;
use crate::parse::Packet;
use crate::quote::Quote;
use crate::rewrite;
use crate::state::State;
use crate::tables::Tables;
use crate::verdict::Decision;

/// Decides on an error about a segment that a service has sent; forwards it as it is if the flow has no entry.
pub(crate) fn handle(
    tables: &Tables,
    state: &mut State,
    arrival: &mut Arrival<'_>,
    packet: &Packet,
    quote: &Quote,
) -> Decision {
    let key = FlowKey { client: quote.target, service: quote.source };
    // The error is no packet of the flow: anybody may send one, so its time is not recorded.
    let Some(entry) = state.settled(key, arrival.now) else {
        return forward::plain(tables, arrival, packet);
    };
    let receiver = Receiver::of(entry);
    delivery::to_site(tables, arrival, packet, &receiver, |frame, site| {
        rewrite::set_quoted_source(frame, packet.network, quote, site.at);
    })
}
