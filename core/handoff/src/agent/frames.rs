//! Packets of flows that move: those that arrive from the switch, those that other servers forward, and those of the
//! stack.

use alloc::vec;
use core::net::SocketAddr;

use spillway_transport::Time;
use spillway_wire::handoff::Part;
use spillway_wire::switch::{Flow, Request, ServerId};

use super::Agent;
use crate::event::{Event, Sorted};
use crate::finished::Finished;
use crate::forward::frame;

impl Agent {
    /// Decides where a received TCP packet goes. `is_opening`: the packet has SYN without ACK. A damaged packet goes to the
    /// stack, which verifies checksums.
    pub fn sort(
        &mut self,
        now: Time,
        ends: (SocketAddr, SocketAddr),
        is_opening: bool,
        frame: &[u8],
    ) -> Sorted {
        let sorted = self.sort_uncounted(now, ends, is_opening, frame);
        self.counters.held += u64::from(sorted == Sorted::Held);
        sorted
    }

    fn sort_uncounted(
        &mut self,
        now: Time,
        (source, target): (SocketAddr, SocketAddr),
        is_opening: bool,
        frame: &[u8],
    ) -> Sorted {
        let Some(flow) = self.flow_here(target, source) else { return Sorted::Stack };
        let direction = self.forwards.direction(now, &flow).filter(|_| !is_opening);
        let is_moving = self.targets.contains_key(&flow)
            || direction.is_some()
            || self.sources.get(&flow).is_some_and(|source| source.state().is_some())
            || self.lent.contains(&flow);
        if !is_moving || frame::parse(frame).is_none() {
            return Sorted::Stack;
        }
        let held = |has_room| if has_room { Sorted::Held } else { Sorted::Dropped };
        if let Some((_, target)) = self.targets.get_mut(&flow) {
            return held(target.held.push(frame));
        }
        if let Some(direction) = direction {
            let is_sent = self.forwards.add(now, flow, direction, frame.to_vec());
            return if is_sent { Sorted::Forwarded } else { Sorted::Dropped };
        }
        let is_loan = self.lending.contains(&flow);
        match self.sources.get_mut(&flow) {
            // `forwards` has no direction for this flow any more: the packet did not pass the switch before the flow was
            // held, so the flow has returned to this server.
            Some(source) if source.state().is_some() && !is_loan => held(source.held.push(frame)),
            _ => self.sort_lent(now, flow, is_opening, frame),
        }
    }

    /// A packet of a connection that this server, its original owner, has lent. It goes to the stack only when the switch
    /// has confirmed that the connection has ended: the network may deliver a copy of a SYN long after its connection was
    /// established, and a stack that answers such a SYN resets the connection once the switch has lost its entries.
    fn sort_lent(&mut self, now: Time, flow: Flow, is_opening: bool, frame: &[u8]) -> Sorted {
        if !self.lent.contains(&flow) {
            return Sorted::Stack;
        }
        if self.sources.contains_key(&flow) {
            return Sorted::Dropped;
        }
        if self.lent.is_question_due(now, &flow, self.settings.times.asking()) {
            self.request(now, Request::Get { flow });
        }
        let is_held = self.lent.hold(&flow, frame, is_opening, &self.held_bytes);
        if is_held { Sorted::Held } else { Sorted::Dropped }
    }

    /// Whether the stack's packet with these ends may leave now. A server that is not the original owner transmits only
    /// while its ownership is sure: it must have sent a heartbeat in the last half of `owner_timeout` that was answered.
    pub fn may_transmit(&self, now: Time, (source, target): (SocketAddr, SocketAddr)) -> bool {
        let Some(flow) = self.flow_here(source, target) else { return true };
        self.is_original(&flow)
            || self.owned.get(&flow).is_some_and(|owned| owned.reclaim.is_none())
                && !self.membership.is_mute(now)
    }

    /// A part of a packet that arrived at the other end of a move.
    pub(super) fn handle_forward(
        &mut self,
        now: Time,
        from: ServerId,
        (flow, generation): (Flow, u64),
        (packet, part): (u32, &Part<'_>),
    ) {
        let Some(mut frame) = self.forwards.handle_part(from, packet, part) else { return };
        let Some(place) = self.place_of(flow.service()) else { return };
        let segment = frame::parse(&frame).filter(|segment| flow.client() == segment.source.into());
        let Some(segment) = segment else { return };
        if !frame::redirect(&mut frame, &segment, self.settings.mac, place) {
            return;
        }
        if let Some((source, target)) = self.targets.get_mut(&flow) {
            let is_wanted = *source == from && target.generation() == generation;
            if is_wanted && target.held.push(&frame) {
                self.counters.forwards_received += 1;
            }
            return;
        }
        if let Some(source) = self.sources.get_mut(&flow).filter(|source| source.state().is_some()) {
            let is_wanted = source.destination().is_some_and(|to| to.generation == generation);
            if is_wanted && source.held.push(&frame) {
                self.counters.forwards_received += 1;
            }
            return;
        }
        let came = self.finished.get(&flow) == Some(&Finished { generation, is_owned: true });
        let returned = self.exports.get(&flow) == Some(&(generation, from));
        let destination = self.sources.get(&flow).and_then(|source| source.destination());
        let stays = destination.is_some_and(|to| to.generation == generation);
        if (came || returned || stays) && self.is_here(now, &flow) {
            self.counters.forwards_received += 1;
            self.events.push_back(Event::Deliver { flow, frames: vec![frame] });
        }
    }

    /// Whether this server has the connection of a flow.
    fn is_here(&self, now: Time, flow: &Flow) -> bool {
        self.forwards.direction(now, flow).is_none()
            && (self.owned.contains_key(flow) || self.is_original(flow) && !self.lent.contains(flow))
    }
}
