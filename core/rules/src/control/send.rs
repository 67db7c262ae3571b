//! Turns a received message into its answer, or into the message that another server gets.

use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{Endpoint, FLAG_FROM_SWITCH, FlowState, MESSAGE_BYTES, Status, View};

use super::request::{Context, Fields, Relay};
use crate::config::PortId;
use crate::flow::Entry;
use crate::parse::{Packet, Transport};
use crate::rewrite;
use crate::state::State;

/// Length of a UDP header.
pub(super) const UDP_HEADER_BYTES: usize = 8;
/// Length of a control message with its UDP header.
pub(super) const DATAGRAM_BYTES: u16 = 136;
const _: () = assert!(DATAGRAM_BYTES as usize == UDP_HEADER_BYTES + MESSAGE_BYTES);

/// Hop limit of packets that the switch sends.
const HOP_LIMIT: u8 = 64;

type Message<'a> = View<&'a mut [u8; MESSAGE_BYTES]>;

/// Writes the answer over the message.
pub(super) fn answer(
    context: &Context<'_>,
    frame: &mut [u8],
    (packet, udp): (&Packet, &Transport),
    (status, fields, entry): (Status, Fields, Option<&Entry>),
) {
    edit(frame, udp, |message| {
        message.set_flags(FLAG_FROM_SWITCH);
        message.set_status(status);
        set_fields(context, message, fields, entry);
        context.sender.key.tag_message(message);
    });
    rewrite::turn_around(frame, packet.network, udp);
    finish(frame, packet, udp);
}

/// Writes the relayed message over the message. Returns the port through which it leaves.
pub(super) fn relay(
    context: &Context<'_>,
    state: &State,
    frame: &mut [u8],
    (packet, udp): (&Packet, &Transport),
    (relay, entry): (&Relay, Option<&Entry>),
) -> PortId {
    let receiver = context.tables.sender(relay.receiver);
    debug_assert!(receiver.is_some(), "the receiver's configuration was checked before any change");
    let Some(receiver) = receiver else { return context.port };
    edit(frame, udp, |message| {
        message.set_flags(FLAG_FROM_SWITCH);
        message.set_status(relay.status);
        message.set_state(entry.map_or(FlowState::None, Entry::state));
        message.set_generation(entry.map_or(0, Entry::generation));
        message.set_owner(relay.site);
        receiver.key.tag_message(message);
    });
    // The daemon hands the message on. With the switch's own address as source the host's kernel would drop it.
    if context.tables.is_local(receiver.port) {
        finish(frame, packet, udp);
        return receiver.port;
    }
    let to = Endpoint::new(receiver.address.0, state.owners.control_port(relay.receiver));
    rewrite::set_udp_ends(frame, packet.network, udp, udp.target, to);
    let egress_mac = context.tables.port(receiver.port).map_or(Mac::ZERO, |port| port.mac);
    rewrite::set_source_mac(frame, egress_mac);
    rewrite::set_target_mac(frame, receiver.next_hop);
    finish(frame, packet, udp);
    receiver.port
}

fn set_fields(context: &Context<'_>, message: &mut Message<'_>, fields: Fields, entry: Option<&Entry>) {
    message.set_state(FlowState::None);
    match fields {
        Fields::Entry => {
            message.set_state(entry.map_or(FlowState::None, Entry::state));
            message.set_generation(entry.map_or(0, Entry::generation));
            message.set_owner(entry.and_then(|entry| entry.owner().in_message()));
        }
        Fields::Blank => {
            message.set_generation(0);
            message.set_owner(None);
        }
        Fields::Hello { generation } => {
            message.set_generation(generation);
            message.set_epoch(context.epoch);
        }
        Fields::Heartbeat => message.set_generation(0),
        Fields::Listed { owner, site } => {
            let state = if owner.is_silent { FlowState::None } else { FlowState::Owned };
            message.set_state(state);
            message.set_owner(site);
            message.set_load(owner.load);
            message.set_free_places(owner.free_places);
            message.set_weight(owner.weight);
            message.set_lifetime_ms(u32::try_from(owner.age.as_millis()).unwrap_or(u32::MAX));
        }
        Fields::NotListed => message.set_owner(None),
    }
}

/// Changes the message in a UDP packet. The checksum is updated later, by [`finish`].
fn edit(frame: &mut [u8], udp: &Transport, change: impl FnOnce(&mut Message<'_>)) {
    let payload = frame.get_mut(udp.at + UDP_HEADER_BYTES..);
    let view = payload.and_then(|payload| View::of_mut(payload).ok());
    debug_assert!(view.is_some(), "the message was checked before");
    if let Some(mut view) = view {
        change(&mut view);
    }
}

fn finish(frame: &mut [u8], packet: &Packet, udp: &Transport) {
    rewrite::set_hop_limit(frame, packet.network, HOP_LIMIT);
    rewrite::set_udp_checksum(frame, packet, udp, DATAGRAM_BYTES);
}
