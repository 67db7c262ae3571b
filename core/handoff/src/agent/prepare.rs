//! *prepare* and *prepared*, which the switch relays from one end of a move to the other.

use spillway_transport::Time;
use spillway_wire::handoff::{Body, Reason};
use spillway_wire::switch::{Flow, Import, Relay, Request, ServerId, Site};

use super::Agent;
use crate::event::{Cause, Event};
use crate::finished::Finished;
use crate::migration::source::{self, Destination, Source};
use crate::migration::target::Target;
use crate::trace::{End, Step};

impl Agent {
    pub(super) fn handle_relay(&mut self, now: Time, sender: ServerId, relay: &Relay) {
        match *relay {
            Relay::Prepare { flow, generation, .. } => self.handle_prepare(now, sender, flow, generation),
            Relay::Prepared { flow, generation, import } => {
                self.handle_prepared(now, flow, generation, import)
            }
        }
    }

    /// The server `source` requests that this server imports a connection.
    fn handle_prepare(&mut self, now: Time, source: ServerId, flow: Flow, generation: u64) {
        let is_old = self.finished.get(&flow).is_some_and(|last| generation <= last.generation)
            || self.owned.get(&flow).is_some_and(|owned| generation <= owned.generation);
        if is_old {
            return;
        }
        // The switch relays *prepare* only from the flow's owner. A flow without an entry is requested from its original owner.
        if self.owned.get(&flow).is_some_and(|owned| owned.reclaim.is_none()) {
            if source == self.settings.id {
                return;
            }
            self.end_replaced(now, flow);
        }
        let place = self.place_of(flow.service()).and_then(|place| Site::new(place, self.settings.mac));
        let Some(place) = place else {
            return self.refuse_prepare(now, source, (flow, generation), Reason::NoService);
        };
        if let Some(own) = self.sources.get(&flow) {
            // The switch relays *prepare* only from the flow's owner: the target of this server's move owns the flow now.
            let is_moved = own.state().is_some() && source != self.settings.id;
            if !is_moved {
                return;
            }
            self.handle_outcome(now, flow, Some(source::Outcome::Moved));
        }
        let is_new = self.targets.get(&flow).is_none_or(|(_, target)| target.generation() < generation);
        if is_new && !self.has_room(&flow) {
            return self.refuse_prepare(now, source, (flow, generation), Reason::NoRoom);
        }
        if is_new {
            if let Some(trace) = &mut self.trace {
                trace.begin(flow, generation, End::Target, Step::ReceivePrepare);
            }
            self.forget_requests(&flow);
            let (times, mut held) = self.parts_of_move();
            if let Some((_, earlier)) = self.targets.remove(&flow) {
                held = earlier.held;
            }
            let target = Target::new(now, flow, generation, place, (times, held));
            self.targets.insert(flow, (source, target));
            if self.announces_arrivals {
                return self.events.push_back(Event::Expect { flow, generation });
            }
            if let Some((_, target)) = self.targets.get_mut(&flow) {
                target.is_expected = true;
            }
        }
        self.answer_prepare(now, flow, generation);
    }

    /// From now on the agent announces connections that are to come here ([`Event::Expect`]), and answers *prepare* only after
    /// [`expected`](Self::expected): for drivers whose packets do not all pass [`sort`](Self::sort), such as those of a
    /// kernel's connections.
    pub fn announce_arrivals(&mut self) {
        self.announces_arrivals = true;
    }

    /// Whether the driver holds the flow's packets until the connection is here: the answer to [`Event::Expect`].
    pub fn expected(&mut self, now: Time, flow: Flow, generation: u64, result: Result<(), Reason>) {
        let Some((source, target)) = self.targets.get_mut(&flow) else { return };
        if target.generation() != generation {
            return;
        }
        match result {
            Ok(()) => {
                target.is_expected = true;
                self.answer_prepare(now, flow, generation);
            }
            Err(reason) => {
                let source = *source;
                self.targets.remove(&flow);
                self.trace_end(&flow, End::Target);
                self.refuse_prepare(now, source, (flow, generation), reason);
            }
        }
    }

    /// Answers *prepare*, once the driver keeps the flow's packets.
    fn answer_prepare(&mut self, now: Time, flow: Flow, generation: u64) {
        let target = self.targets.get_mut(&flow).map(|(_, target)| target);
        let target = target.filter(|target| target.generation() == generation && target.is_expected);
        if let Some(prepared) = target.map(|target| target.prepared(now)) {
            self.trace_step(&flow, End::Target, Step::SendPrepared);
            self.request(now, prepared);
        }
    }

    /// Another server owns a flow that this server has owned: the switch has ended the entry, because the client has closed the
    /// connection and has opened a new one with the same ends. The old connection, if it is still here, ends without a segment.
    fn end_replaced(&mut self, now: Time, flow: Flow) {
        let is_asking = self.sources.get(&flow).is_some_and(|source| source.state().is_none());
        if is_asking {
            self.handle_outcome(now, flow, Some(source::Outcome::LetGo));
        } else if self.ended.contains_key(&flow) {
            self.end_release(&flow);
        } else {
            self.give_up(flow, Cause::Foreign);
        }
    }

    /// Refuses a move before *prepared*. The switch's message has no reason: a datagram to the source states it.
    fn refuse_prepare(
        &mut self,
        now: Time,
        source: ServerId,
        (flow, generation): (Flow, u64),
        reason: Reason,
    ) {
        self.counters.count_refusal(reason);
        // A repeated *prepare* is not accepted: the source relies on it that a server that has refused never owns the flow.
        self.finished.insert(flow, Finished { generation, is_owned: false });
        self.send(source, flow, generation, Body::Refused(reason));
        self.request(now, Request::Prepared { flow, asked: generation, import: Import::Refused });
        self.events.push_back(Event::Refused { flow, source, reason });
    }

    /// Whether this server can take part in another move of this flow.
    fn has_room(&self, flow: &Flow) -> bool {
        let coming = self.targets.len();
        let has_place = self.owned.contains_key(flow)
            || usize::try_from(self.free_places).is_ok_and(|free_places| coming < free_places);
        self.targets.contains_key(flow) || has_place && coming < self.settings.limits.moves_max
    }

    /// The target of a move is ready, or refuses.
    fn handle_prepared(&mut self, now: Time, flow: Flow, generation: u64, import: Import) {
        if let Some(source) = self.sources.get_mut(&flow) {
            let outcome = source.handle_prepared(now, generation, import);
            if let Some(trace) = self.trace.as_mut().filter(|_| outcome == Some(source::Outcome::Export)) {
                trace.set_generation(&flow, generation);
                trace.record(&flow, End::Source, Step::ReceivePrepared);
            }
            return self.handle_outcome(now, flow, outcome);
        }
        // This server has given the move up. It takes the flow back: otherwise the client's packets would go to the target
        // until the lifetime of the move ends.
        let is_new = self.owned.get(&flow).is_none_or(|owned| generation > owned.generation);
        let Import::Ready(target) = import else { return };
        if is_new && !self.targets.contains_key(&flow) && !self.lent.contains(&flow) {
            let to = Destination { generation, target };
            let source = Source::settle(now, flow, to, self.parts_of_move());
            self.begin(flow, source);
        }
    }
}
