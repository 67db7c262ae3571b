//! What follows from the end of a move, at its source and at its target.

use alloc::vec::Vec;

use spillway_transport::Time;
use spillway_wire::Chunks;
use spillway_wire::handoff::{Body, Reason};
use spillway_wire::switch::Flow;

use super::{Agent, Owned};
use crate::event::{Cause, Event, MoveResult};
use crate::finished::Finished;
use crate::migration::source::{self, Source};
use crate::migration::target;
use crate::reclaim::RECLAIMS_FOR;
use crate::trace::{End, Step};

impl Agent {
    pub(super) fn handle_outcome(&mut self, now: Time, flow: Flow, outcome: Option<source::Outcome>) {
        let Some(outcome) = outcome else { return };
        if outcome == source::Outcome::Export {
            if self.lending.contains(&flow) {
                return self.exported(now, flow, Chunks::new());
            }
            return self.events.push_back(Event::Export { flow });
        }
        let Some(mut source) = self.sources.remove(&flow) else { return };
        if outcome == source::Outcome::Moved {
            self.trace_step(&flow, End::Source, Step::ReceiveAccepted);
        }
        self.trace_end(&flow, End::Source);
        self.forget_requests(&flow);
        let is_loan = self.lending.remove(&flow);
        let result = match outcome {
            source::Outcome::Export => return,
            source::Outcome::Kept { generation } => {
                self.keep(now, flow, generation, is_loan);
                self.send_taken_back(flow, &source);
                MoveResult::Kept(source.obstacle())
            }
            source::Outcome::Returned { generation } => {
                self.own_again(now, flow, generation, &source);
                self.send_taken_back(flow, &source);
                self.forwards.end(&flow);
                match source.state().filter(|_| !is_loan).cloned() {
                    Some(state) => {
                        self.lent.remove(&flow);
                        let frames = source.held.take();
                        self.events.push_back(Event::Import { flow, state, frames, is_return: true });
                    }
                    None => self.connection_ended(now, flow),
                }
                MoveResult::Returned(source.refusal())
            }
            source::Outcome::Moved => {
                self.end_release(&flow);
                // A kernel's driver knows only now that it has to forward what has reached the old socket.
                if let Some(&(generation, target)) =
                    self.exports.get(&flow).filter(|_| self.announces_arrivals)
                {
                    self.forwards.begin(flow, target, generation, now + self.settings.times.forward_for);
                }
                if self.is_original(&flow) {
                    self.lent.add(flow);
                    // Until the target has taken the flow back, the client must not be reset.
                    if source.is_stranded() {
                        self.lent.handle_lost_entry(now, &flow);
                    }
                }
                MoveResult::Moved
            }
            source::Outcome::LetGo => {
                self.end_release(&flow);
                self.forwards.end(&flow);
                if source.state().is_some() {
                    self.lend_to_unknown(now, flow);
                    self.events.push_back(Event::Gone { flow, cause: Cause::Doubt });
                } else {
                    self.events.push_back(Event::Drop { flow, cause: Cause::Foreign });
                }
                MoveResult::LetGo
            }
        };
        if !is_loan {
            self.end(now, flow, result);
        }
    }

    /// Reports the end of a move, and what follows for its request.
    fn end(&mut self, now: Time, flow: Flow, result: MoveResult) {
        self.events.push_back(Event::Ended { flow, result });
        self.end_request_move(now, &flow, result);
    }

    /// A move has ended before the export.
    fn keep(&mut self, now: Time, flow: Flow, generation: u64, is_loan: bool) {
        match generation {
            0 if self.is_original(&flow) => self.owned.remove(&flow),
            // The flow is the original owner's now.
            0 => self.give_up(flow, Cause::Doubt),
            _ => {
                self.owned.insert(flow, Owned { generation, reclaim: None });
                if is_loan {
                    self.connection_ended(now, flow);
                }
            }
        }
    }

    /// An exported connection has come back. Generation 0: the switch has lost its entries, so that the flow belongs to its
    /// original owner. Another server requests it from there, as it does for all its flows.
    fn own_again(&mut self, now: Time, flow: Flow, generation: u64, source: &Source) {
        if generation == 0 && self.is_original(&flow) {
            self.owned.remove(&flow);
            return;
        }
        let reclaim = (generation == 0).then_some((now + RECLAIMS_FOR, now));
        let generation = source.destination().map_or(generation, |to| generation.max(to.generation));
        self.owned.insert(flow, Owned { generation, reclaim });
    }

    /// The original owner has exported a connection, and does not know whether another server has it. The entry shows whether
    /// the connection has ended, as that of a connection that has moved away.
    fn lend_to_unknown(&mut self, now: Time, flow: Flow) {
        if self.is_original(&flow) && !self.lent.contains(&flow) {
            self.lent.add(flow);
            self.lent.handle_lost_entry(now, &flow);
        }
    }

    /// Informs the target that the switch has confirmed the source as the flow's owner, so that the target stops waiting.
    fn send_taken_back(&mut self, flow: Flow, source: &Source) {
        let Some(to) = source.destination() else { return };
        if let Some(target) = self.settings.server_with(to.target.mac()) {
            self.send(target, flow, to.generation, Body::TakenBack);
        }
    }

    /// Gives the copy of an exported connection up.
    pub(super) fn let_go(&mut self, now: Time, flow: Flow, cause: Cause) {
        self.sources.remove(&flow);
        self.lend_to_unknown(now, flow);
        self.trace_end(&flow, End::Source);
        self.lending.remove(&flow);
        self.forwards.end(&flow);
        self.end_release(&flow);
        self.events.push_back(Event::Gone { flow, cause });
        self.end(now, flow, MoveResult::LetGo);
    }

    pub(super) fn end_target(&mut self, now: Time, flow: Flow, outcome: target::Outcome) {
        let Some(state) = self.targets.get(&flow).and_then(|(_, target)| target.state()).cloned() else {
            return;
        };
        let has_connection = state.is_empty();
        let target::Outcome::Owned { generation } = outcome else {
            self.refuse(now, flow, Reason::Lost);
            if has_connection {
                self.give_up(flow, Cause::Restart);
            }
            return;
        };
        let Some((source, mut target)) = self.targets.remove(&flow) else { return };
        self.trace_step(&flow, End::Target, Step::Owned);
        self.forget_requests(&flow);
        self.finished.insert(flow, Finished { generation: target.generation(), is_owned: true });
        self.send(source, flow, target.generation(), Body::Accepted);
        self.owned.insert(flow, Owned { generation, reclaim: None });
        self.lent.remove(&flow);
        self.forwards.end(&flow);
        let frames = target.held.take();
        if has_connection {
            self.counters.reclaimed += 1;
            self.events.push_back(Event::Deliver { flow, frames });
        } else {
            self.events.push_back(Event::Import { flow, state, frames, is_return: false });
        }
    }

    /// Ends a move to this server: informs its source, and returns the packets that wait here.
    pub(super) fn refuse(&mut self, now: Time, flow: Flow, reason: Reason) {
        let Some((source, mut target)) = self.targets.remove(&flow) else { return };
        let generation = target.generation();
        self.trace_end(&flow, End::Target);
        self.forget_requests(&flow);
        self.finished.insert(flow, Finished { generation, is_owned: false });
        self.counters.count_refusal(reason);
        self.send(source, flow, generation, Body::Refused(reason));
        self.forwards.begin(flow, source, generation, now + self.settings.times.forward_for);
        if let Some(direction) = self.forwards.direction(now, &flow) {
            for frame in target.held.take() {
                self.forwards.add(now, flow, direction, frame);
            }
        }
        self.events.push_back(Event::Refused { flow, source, reason });
    }

    pub(super) fn end_targets(&mut self, now: Time) {
        for flow in self.targets.keys().copied().collect::<Vec<_>>() {
            self.refuse(now, flow, Reason::Silent);
        }
    }
}
