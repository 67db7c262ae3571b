//! Control messages: checks, in the order of docs/wire.md, and the dispatch by kind.
//!
//! Each kind is a function from a [`Request`] and the tables to a [`Reply`]; only this file and `send` read or write
//! the packet.

mod flows;
mod own;
mod owners;
mod prepare;
mod request;
mod rights;
mod send;

use spillway_transport::Time;
use spillway_wire::switch::{Kind, MESSAGE_BYTES, SWITCH_VERSION, ServerId, Status, View};

use crate::config::PortId;
use crate::parse::{Packet, Transport, u16_at};
use crate::state::State;
use crate::tables::{Sender, Tables};
use crate::verdict::{Action, Decision, Verdict};
use request::{Context, Fields, Reply, Request};
use send::{DATAGRAM_BYTES, UDP_HEADER_BYTES};

/// Handles a datagram to a control endpoint that arrived on a configured port, on the daemon's, or on the local server's.
pub(crate) fn handle(
    tables: &Tables,
    state: &mut State,
    epoch: u64,
    now: Time,
    port: PortId,
    frame: &mut [u8],
    (packet, udp): (&Packet, &Transport),
) -> Decision {
    if port != PortId::DAEMON && !tables.is_server_port(port) {
        return Decision::drop(Verdict::DropControlPort);
    }
    let Some((view, id, sender)) = message(tables, frame, udp) else {
        return Decision::drop(Verdict::DropControlInvalid);
    };
    if !sender.key.verify_message(&view) {
        return Decision::drop(Verdict::DropControlTag);
    }
    let context = Context {
        tables,
        sender,
        epoch,
        now,
        port,
        is_ipv4: packet.network.is_ipv4,
        is_plain: packet.is_plain(udp),
        source_port: udp.source.port(),
    };
    let request = Request::new(id, &view);
    let reply = decide(&context, state, &request, &view);
    let entry = state.flows.get(&request.flow);
    match reply {
        Reply::Answer(status, fields) => {
            send::answer(&context, frame, (packet, udp), (status, fields, entry));
            Decision { verdict: Verdict::Answered, action: Action::Answer }
        }
        Reply::Relay(relay) => {
            let egress = send::relay(&context, state, frame, (packet, udp), (&relay, entry));
            if tables.is_local(egress) {
                Decision::up(Verdict::Relayed)
            } else {
                Decision::to(Verdict::Relayed, egress)
            }
        }
    }
}

/// The message of a datagram, and its sender; `None` if it is not a request of a configured sender.
fn message<'a, 'b>(
    tables: &'a Tables,
    frame: &'b [u8],
    udp: &Transport,
) -> Option<(View<&'b [u8; MESSAGE_BYTES]>, ServerId, &'a Sender)> {
    if u16_at(frame, udp.at + 4) != Ok(DATAGRAM_BYTES) {
        return None;
    }
    let view = View::of(frame.get(udp.at + UDP_HEADER_BYTES..)?).ok()?;
    if view.is_from_switch() {
        return None;
    }
    let (id, sender) = tables.sender_of(view.sender())?;
    Some((view, id, sender))
}

/// The checks that an authentic message must pass, and what it does.
fn decide(
    context: &Context<'_>,
    state: &mut State,
    request: &Request,
    view: &View<&[u8; MESSAGE_BYTES]>,
) -> Reply {
    let Some(kind) = view.kind().ok().filter(|_| view.version() == SWITCH_VERSION) else {
        return Reply::Answer(Status::UnknownVersion, Fields::Blank);
    };
    if context.sender.port != context.port {
        return Reply::Answer(Status::Forbidden, Fields::Blank);
    }
    if kind == Kind::Hello {
        return owners::hello(context, state, request);
    }
    if request.epoch != context.epoch {
        return Reply::Answer(Status::NoOwner, Fields::Blank);
    }
    let is_new = state.owners.accept(request.sender, request.sequence);
    match kind {
        Kind::Heartbeat => owners::heartbeat(context, state, request, is_new),
        Kind::List => owners::list(context, state, request, is_new),
        _ => flows::handle(context, state, kind, request, is_new),
    }
}
