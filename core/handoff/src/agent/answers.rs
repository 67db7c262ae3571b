//! What the switch answers to an agent, and the outcomes of its moves.

use alloc::vec::Vec;

use spillway_transport::Time;
use spillway_wire::switch::{Answer, Body, Flow, FlowState, Kind, Message, Status};

use super::{Agent, Cause, Event, Owned, RECLAIMS_FOR};
use crate::membership::Change;
use crate::migration::{Seen, source, target};
use crate::transfer::Transfer;

impl Agent {
    /// Handles a datagram from the switch. Forged and damaged ones are ignored.
    pub fn handle_datagram(&mut self, now: Time, payload: &[u8]) {
        let Ok(message) = self.settings.key.parse(payload) else { return };
        match &message.body {
            Body::Answer(answer) if message.sender == self.settings.id => {
                self.handle_answer(now, &message, answer)
            }
            // A relayed message of another epoch of the switch is about entries that are lost.
            Body::Relay(relay) if message.epoch == self.membership.epoch() && self.membership.is_owner() => {
                self.handle_relay(now, message.sender, relay);
            }
            Body::Answer(_) | Body::Relay(_) | Body::Request(_) => {}
        }
    }

    fn handle_answer(&mut self, now: Time, message: &Message, answer: &Answer) {
        let sequence = message.sequence;
        if answer.kind == Kind::Hello {
            let term = (message.epoch, answer.generation);
            let change = self.membership.handle_hello(now, sequence, answer.status, term);
            return self.handle_change(now, change);
        }
        if message.epoch != self.membership.epoch() {
            return;
        }
        if answer.kind == Kind::Heartbeat {
            let change = self.membership.handle_heartbeat(now, sequence, answer.status);
            return self.handle_change(now, change);
        }
        let Some((kind, flow)) = self.waiting.remove(&sequence).filter(|(kind, _)| *kind == answer.kind)
        else {
            return;
        };
        let seen = Seen {
            status: answer.status,
            state: answer.state,
            generation: answer.generation,
            is_ours: answer.owner.is_some_and(|owner| owner.mac() == self.settings.mac),
        };
        match kind {
            Kind::Release => self.handle_released(&flow, seen),
            Kind::Prepared => {
                // The move of this *prepared* is over, or has never been.
                let is_over = matches!(seen.status, Status::Stale | Status::Forbidden | Status::NoEntry);
                if is_over && self.targets.get(&flow).is_some_and(|(_, target)| target.is_waiting()) {
                    self.refuse(flow);
                }
            }
            Kind::Own if self.targets.contains_key(&flow) => {
                let outcome = self.targets.get(&flow).and_then(|(_, target)| target.handle_answer(seen));
                if let Some(outcome) = outcome {
                    self.end_target(flow, &outcome);
                }
            }
            _ => {
                let outcome = self.sources.get_mut(&flow).and_then(|source| source.handle_answer(now, seen));
                self.handle_outcome(now, flow, outcome);
            }
        }
    }

    fn handle_change(&mut self, now: Time, change: Option<Change>) {
        match change {
            Some(Change::Joined { is_new_epoch: true }) => self.handle_lost_entries(now),
            Some(Change::Joined { is_new_epoch: false }) => self.handle_new_term(),
            Some(Change::MustSkipTo(seen)) => self.sequences.skip_to(seen),
            Some(Change::Lost) | None => {}
        }
    }

    /// The switch has lost all entries: every flow is the original owner's. Owners ask it for theirs.
    fn handle_lost_entries(&mut self, now: Time) {
        self.waiting.clear();
        self.forget_ended();
        self.end_targets(Cause::Restart);
        for flow in self.sources.keys().copied().collect::<Vec<_>>() {
            let outcome = self.sources.get(&flow).map(source::Source::handle_lost_entries);
            if outcome == Some(source::Outcome::LetGo) {
                self.let_go(flow, Cause::Restart);
            } else if self.is_original() {
                self.handle_outcome(now, flow, outcome);
            } else {
                self.sources.remove(&flow);
            }
        }
        if self.is_original() {
            self.owned.clear();
        }
        self.owned.values_mut().for_each(|owned| owned.reclaim = Some((now + RECLAIMS_FOR, now)));
    }

    /// The switch has declared this server dead before: what it had imported went back to the original owner.
    fn handle_new_term(&mut self) {
        self.waiting.clear();
        self.end_targets(Cause::Silence);
        if self.is_original() {
            return;
        }
        self.forget_ended();
        for flow in self.sources.keys().copied().collect::<Vec<_>>() {
            if self.sources.get(&flow).is_some_and(|source| source.state().is_some()) {
                self.let_go(flow, Cause::Silence);
            }
        }
        self.sources.clear();
        for flow in self.owned.keys().copied().collect::<Vec<_>>() {
            self.give_up(flow, Cause::Silence);
        }
    }

    fn end_targets(&mut self, cause: Cause) {
        for flow in self.targets.keys().copied().collect::<Vec<_>>() {
            self.events.push_back(Event::Gone { flow, cause });
            self.refuse(flow);
        }
    }

    fn handle_released(&mut self, flow: &Flow, seen: Seen) {
        match self.owned.get_mut(flow) {
            Some(owned) if seen.status == Status::Stale && seen.state == FlowState::Owned && seen.is_ours => {
                owned.generation = seen.generation;
            }
            _ if matches!(seen.status, Status::Replayed | Status::NoOwner) => {}
            _ => self.end_release(flow),
        }
    }

    pub(super) fn handle_outcome(&mut self, now: Time, flow: Flow, outcome: Option<source::Outcome>) {
        let Some(outcome) = outcome else { return };
        if outcome == source::Outcome::Export {
            if self.lending.contains(&flow) {
                return self.exported(now, flow, alloc::sync::Arc::from(&[][..]));
            }
            return self.events.push_back(Event::Export { flow });
        }
        let Some(source) = self.sources.remove(&flow) else { return };
        self.forget_requests(&flow);
        let is_loan = self.lending.remove(&flow);
        match outcome {
            source::Outcome::Export => {}
            source::Outcome::Kept { generation: 0 } if self.is_original() => _ = self.owned.remove(&flow),
            // The flow is the original owner's now.
            source::Outcome::Kept { generation: 0 } => self.give_up(flow, Cause::Doubt),
            source::Outcome::Kept { generation } => {
                self.owned.insert(flow, Owned { generation, reclaim: None });
                if is_loan {
                    self.connection_ended(now, flow);
                }
            }
            source::Outcome::Returned { generation } => {
                self.owned.insert(flow, Owned { generation, reclaim: None });
                match source.state().filter(|_| !is_loan) {
                    Some(state) => {
                        let (state, frames) = (state.clone(), Vec::new());
                        self.lent.remove(&flow);
                        self.events.push_back(Event::Import { flow, state, frames, is_return: true });
                    }
                    None => self.connection_ended(now, flow),
                }
            }
            source::Outcome::Moved => {
                self.end_release(&flow);
                if self.is_original() {
                    self.lent.add(flow);
                }
            }
            source::Outcome::LetGo => {
                self.end_release(&flow);
                self.events.push_back(match source.state() {
                    Some(_) => Event::Gone { flow, cause: Cause::Doubt },
                    None => Event::Drop { flow, cause: Cause::Foreign },
                });
            }
        }
    }

    /// Gives the copy of an exported connection up.
    fn let_go(&mut self, flow: Flow, cause: Cause) {
        self.sources.remove(&flow);
        self.lending.remove(&flow);
        self.end_release(&flow);
        self.events.push_back(Event::Gone { flow, cause });
    }

    pub(super) fn end_target(&mut self, flow: Flow, outcome: &target::Outcome) {
        let Some(state) = self.targets.get(&flow).and_then(|(_, target)| target.state()).cloned() else {
            return;
        };
        let has_connection = state.is_empty();
        let target::Outcome::Owned { generation } = *outcome else {
            self.refuse(flow);
            if has_connection {
                self.give_up(flow, Cause::Restart);
            }
            return;
        };
        let Some((source, mut target)) = self.targets.remove(&flow) else { return };
        self.forget_requests(&flow);
        self.finish(flow, target.generation(), true);
        self.transfer(source, flow, target.generation(), Transfer::Owned);
        self.owned.insert(flow, Owned { generation, reclaim: None });
        self.lent.remove(&flow);
        let frames = target.held().take();
        if has_connection {
            self.reclaimed += 1;
            self.events.push_back(Event::Deliver { frames });
        } else {
            self.events.push_back(Event::Import { flow, state, frames, is_return: false });
        }
    }
}
