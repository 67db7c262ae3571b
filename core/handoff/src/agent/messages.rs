//! Messages of other servers.

use alloc::vec::Vec;

use spillway_transport::Time;
use spillway_wire::handoff::{Body, Message, Part, Reason};
use spillway_wire::switch::{Flow, ServerId};

use super::Agent;
use crate::event::Event;
use crate::finished::Known;
use crate::migration::source::Source;
use crate::peers::Received;
use crate::trace::{End, Step};

impl Agent {
    pub(super) fn handle_peer_datagram(&mut self, now: Time, payload: &mut [u8]) {
        match self.peers.open(now, payload) {
            Some(Received::Message(from, message)) => self.handle_message(now, from, &message),
            Some(Received::NewRun(peer)) => self.handle_new_run(now, peer),
            None => {}
        }
    }

    /// A peer has restarted and has lost its moves: states that this server has sent to the peer are lost, and states that
    /// this server awaits from the peer will not arrive.
    fn handle_new_run(&mut self, now: Time, peer: ServerId) {
        for flow in self.sources.keys().copied().collect::<Vec<_>>() {
            let outcome = self.source_to(peer, &flow).and_then(|source| source.handle_new_run(now));
            self.handle_outcome(now, flow, outcome);
        }
        let waiting = self.targets.iter().filter(|(_, (from, target))| *from == peer && target.is_waiting());
        for flow in waiting.map(|(flow, _)| *flow).collect::<Vec<_>>() {
            self.refuse(now, flow, Reason::NoMove);
        }
        let lost = self.requests.handle_new_run(peer);
        self.report_ended(lost);
    }

    fn handle_message(&mut self, now: Time, from: ServerId, message: &Message<'_>) {
        let (flow, generation) = (message.flow, message.generation);
        match &message.body {
            Body::State(part) => self.handle_part(now, from, (flow, generation), part),
            Body::Lent => self.handle_lent(now, from, flow, generation),
            Body::Received(received) => {
                if let Some(source) = self.source_to(from, &flow) {
                    source.handle_received(now, generation, *received);
                    self.ready.insert(flow);
                }
            }
            Body::Accepted => {
                let outcome =
                    self.source_to(from, &flow).and_then(|source| source.handle_accepted(generation));
                self.handle_outcome(now, flow, outcome);
            }
            Body::Refused(reason) => {
                let source = self.source_to(from, &flow);
                let outcome = source.and_then(|source| source.handle_refused(now, generation, *reason));
                self.handle_outcome(now, flow, outcome);
            }
            Body::TakenBack => self.handle_taken_back(now, from, flow, generation),
            Body::Forward { frame, part } => {
                self.handle_forward(now, from, (flow, generation), (*frame, part))
            }
            Body::Reclaim => self.handle_reclaim(now, from, flow),
            body @ (Body::Served(_) | Body::Abandoned(_) | Body::PassedOn(..)) => {
                self.handle_request_report(now, from, flow, body);
            }
            Body::Noted(number, next) => self.requests.handle_noted(from, *number, *next),
        }
    }

    /// The move of a flow to the server `to`; `None` if the flow does not move there.
    fn source_to(&mut self, to: ServerId, flow: &Flow) -> Option<&mut Source> {
        let mac = self.settings.mac_of(to)?;
        self.sources.get_mut(flow).filter(|source| source.is_to(mac))
    }

    fn handle_part(&mut self, now: Time, from: ServerId, (flow, generation): (Flow, u64), part: &Part<'_>) {
        let target = self.targets.get_mut(&flow).filter(|(source, _)| *source == from);
        let Some((_, target)) = target.filter(|(_, target)| target.generation() == generation) else {
            return self.answer_finished(from, flow, generation);
        };
        // A flow does not come to be owned here while this server is the target of its move.
        if !target.has_part() && self.owned.contains_key(&flow) {
            return self.refuse(now, flow, Reason::Invalid);
        }
        let is_ready = target.owes_received(now);
        match target.handle_part(now, part, &self.state_bytes) {
            Ok(Some(state)) => {
                debug_assert!(!self.owned.contains_key(&flow), "a flow that moves here is not owned here");
                self.trace_step(&flow, End::Target, Step::ReceiveState);
                self.events.push_back(Event::Check { flow, generation, state });
            }
            Ok(None) => {}
            Err(reason) => return self.refuse(now, flow, reason),
        }
        if !is_ready {
            self.ready.insert(flow);
        }
    }

    fn handle_lent(&mut self, now: Time, from: ServerId, flow: Flow, generation: u64) {
        if !self.is_target(from, &flow, generation) {
            return self.answer_finished(from, flow, generation);
        }
        if !self.owned.contains_key(&flow) {
            return self.refuse(now, flow, Reason::Invalid);
        }
        if let Some((_, target)) = self.targets.get_mut(&flow) {
            target.handle_lent(now);
            self.ready.insert(flow);
        }
    }

    fn is_target(&self, from: ServerId, flow: &Flow, generation: u64) -> bool {
        let target = self.targets.get(flow);
        target.is_some_and(|(source, target)| *source == from && target.generation() == generation)
    }

    /// Answers a message of a move that has ended here, or of which this server has no record.
    fn answer_finished(&mut self, from: ServerId, flow: Flow, generation: u64) {
        // A flow that was imported so long ago that the move is forgotten has an entry of a later generation.
        let has_later = self.owned.get(&flow).is_some_and(|owned| owned.generation > generation);
        let known = if has_later { Known::Over } else { self.finished.end_of(&flow, generation) };
        let body = match known {
            // The source must not continue the connection.
            Known::Owned | Known::Over => Body::Accepted,
            Known::Refused => Body::Refused(Reason::NoMove),
            // The entry decides, or the source gives up.
            Known::Nothing => return,
        };
        self.send(from, flow, generation, body);
    }

    fn handle_taken_back(&mut self, now: Time, from: ServerId, flow: Flow, generation: u64) {
        if self.is_target(from, &flow, generation)
            && let Some((_, target)) = self.targets.get_mut(&flow)
            && target.handle_taken_back(now)
        {
            self.refuse(now, flow, Reason::Lost);
        }
    }

    /// The switch has lost the entry of a flow of the server `from`. This server is the original owner, which owns every
    /// flow without an entry, and moves the flow to `from`.
    fn handle_reclaim(&mut self, now: Time, from: ServerId, flow: Flow) {
        let may_lend = self.is_original(&flow) && self.membership.is_owner() && self.lent.contains(&flow);
        let is_moving = self.sources.contains_key(&flow) || self.targets.contains_key(&flow);
        if !may_lend || is_moving || self.sources.len() >= self.settings.limits.moves_max {
            return;
        }
        let replaces = self.owned.get(&flow).map_or(0, |owned| owned.generation);
        let Some(site) = self.site_of(from, &flow) else { return };
        self.lending.insert(flow);
        let source = Source::new(now, flow, replaces, Some(site), self.parts_of_move());
        self.begin(flow, source);
    }
}
