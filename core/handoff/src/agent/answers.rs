//! Datagrams, and what the switch answers.

use alloc::vec::Vec;

use spillway_transport::Time;
use spillway_wire::switch::{Answer, Body, Flow, FlowState, Kind, Message, SWITCH_MAGIC, Status};

use super::Agent;
use crate::event::{Cause, Event, MoveResult, Obstacle};
use crate::membership::Change;
use crate::migration::{Seen, source};
use crate::reclaim::{RECLAIM_SPACING, RECLAIMS_FOR};

impl Agent {
    /// Handles the payload of a datagram from the switch or from another server, and opens the latter in place. Forged and
    /// damaged datagrams are ignored.
    pub fn handle_datagram(&mut self, now: Time, payload: &mut [u8]) {
        if !payload.starts_with(&SWITCH_MAGIC) {
            return self.handle_peer_datagram(now, payload);
        }
        let Ok(message) = self.settings.key.parse(payload) else { return };
        match &message.body {
            Body::Answer(answer) if message.sender == self.settings.id => {
                self.handle_answer(now, &message, answer)
            }
            // A relayed message of another epoch of the switch is about entries that are lost.
            Body::Relay(relay) if message.epoch == self.membership.epoch() && self.membership.is_owner() => {
                if self.relays.note(message.sender, message.sequence) {
                    self.handle_relay(now, message.sender, relay);
                }
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
        if answer.kind == Kind::List {
            return self.handle_listed(sequence, answer);
        }
        let waiting = self.waiting.remove(&sequence);
        let Some((kind, flow)) = waiting.filter(|(kind, _)| *kind == answer.kind) else { return };
        let seen = Seen {
            status: answer.status,
            state: answer.state,
            generation: answer.generation,
            is_ours: answer.owner.is_some_and(|owner| owner.mac() == self.settings.mac),
        };
        match kind {
            Kind::Release => self.handle_released(&flow, seen),
            Kind::Prepared => self.handle_prepared_answer(now, flow, seen),
            Kind::Own if self.targets.contains_key(&flow) => {
                let outcome = self.targets.get(&flow).and_then(|(_, target)| target.handle_answer(seen));
                if let Some(outcome) = outcome {
                    self.end_target(now, flow, outcome);
                }
            }
            Kind::Get if !self.sources.contains_key(&flow) => self.handle_lent_entry(now, flow, seen),
            _ => {
                let outcome = self.sources.get_mut(&flow).and_then(|source| source.handle_answer(now, seen));
                self.handle_outcome(now, flow, outcome);
            }
        }
    }

    fn handle_change(&mut self, now: Time, change: Option<Change>) {
        match change {
            Some(Change::Joined { is_new_epoch: true }) => self.handle_lost_entries(now),
            Some(Change::Joined { is_new_epoch: false }) => self.handle_new_term(now),
            Some(Change::MustSkipTo(seen)) => self.sequences.skip_to(seen),
            Some(Change::Lost) | None => {}
        }
    }

    /// The switch has lost all entries, so that every flow belongs to its original owner. For each flow that this server had
    /// imported, this server requests the flow from its original owner.
    fn handle_lost_entries(&mut self, now: Time) {
        self.waiting.clear();
        self.relays.clear();
        self.lent.handle_lost_entries(now);
        self.end_targets(now);
        for flow in self.sources.keys().copied().collect::<Vec<_>>() {
            let Some(source) = self.sources.get_mut(&flow) else { continue };
            let is_loan = self.lending.contains(&flow) && source.state().is_some();
            match source.handle_lost_entries(now, now + RECLAIMS_FOR) {
                // The target, which has the connection already, requests the flow again.
                _ if is_loan => self.let_go(now, flow, Cause::Restart),
                None => {
                    // Packets wait here until the target has answered.
                    self.forwards.end(&flow);
                    self.ready.insert(flow);
                }
                Some(source::Outcome::LetGo) => self.let_go(now, flow, Cause::Restart),
                Some(source::Outcome::Kept { .. }) if !self.is_original(&flow) => {
                    self.sources.remove(&flow);
                    self.end_request_move(now, &flow, MoveResult::Kept(Obstacle::Restart));
                }
                outcome => self.handle_outcome(now, flow, outcome),
            }
        }
        for flow in self.owned.keys().copied().collect::<Vec<_>>() {
            if self.is_original(&flow) {
                self.end_release(&flow);
            }
        }
        // Also connections that have ended: their last segments may have to be repeated. Then their new entries are released.
        self.ended.update_all(|ended| ended.releases = 0);
        let mut next_at = now;
        self.owned.update_all(|owned| {
            owned.reclaim = Some((next_at + RECLAIMS_FOR, next_at));
            next_at = next_at + RECLAIM_SPACING;
        });
    }

    /// The switch had declared this server dead: the flows that this server had imported belong to their original owners.
    fn handle_new_term(&mut self, now: Time) {
        self.waiting.clear();
        self.end_targets(now);
        let foreign = |flow: &&Flow| !self.is_original(flow);
        let sources: Vec<Flow> = self.sources.keys().filter(foreign).copied().collect();
        let owned: Vec<Flow> = self.owned.keys().filter(foreign).copied().collect();
        let ended: Vec<Flow> = self.ended.keys().filter(foreign).copied().collect();
        for flow in ended {
            self.ended.remove(&flow);
        }
        for flow in sources {
            if self.sources.get(&flow).is_some_and(|source| source.state().is_some()) {
                self.let_go(now, flow, Cause::Silence);
            }
            self.sources.remove(&flow);
            self.end_request_move(now, &flow, MoveResult::Kept(Obstacle::Silence));
        }
        for flow in owned {
            self.give_up(flow, Cause::Silence);
        }
    }

    /// The answer to *prepared*: ends the move if the entry is not asked for this server any more.
    fn handle_prepared_answer(&mut self, now: Time, flow: Flow, seen: Seen) {
        let is_over = matches!(seen.status, Status::Stale | Status::Forbidden | Status::NoEntry);
        if is_over && self.targets.get(&flow).is_some_and(|(_, target)| target.is_waiting()) {
            self.refuse(now, flow, spillway_wire::handoff::Reason::NoMove);
        }
    }

    /// Handles the entry of a flow whose connection this server, the original owner, has lent, and of which stray packets
    /// arrive here.
    fn handle_lent_entry(&mut self, now: Time, flow: Flow, seen: Seen) {
        let is_elsewhere = match (seen.status, seen.state) {
            (Status::Ok, FlowState::Owned) => !seen.is_ours,
            (Status::Ok, _) => true,
            (Status::NoEntry, _) => false,
            _ => return,
        };
        if let Some(frames) = self.lent.handle_entry(now, &flow, is_elsewhere) {
            self.events.push_back(Event::LoanEnded { flow, frames });
            let lost = self.requests.handle_lost_loan(&flow);
            self.report_ended(lost);
        }
    }

    fn handle_released(&mut self, flow: &Flow, seen: Seen) {
        let is_newer = seen.status == Status::Stale && seen.state == FlowState::Owned && seen.is_ours;
        if is_newer && self.owned.update(flow, |owned| owned.generation = seen.generation).is_some() {
            return;
        }
        if !matches!(seen.status, Status::Replayed | Status::NoOwner) {
            self.end_release(flow);
        }
    }
}
