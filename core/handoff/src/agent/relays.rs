//! Messages of other servers: relayed by the switch, or direct.

use alloc::sync::Arc;
use alloc::vec::Vec;

use spillway_transport::Time;
use spillway_wire::switch::{Flow, Import, Relay, Request, ServerId, Site};

use super::{Agent, Event};
use crate::migration::source::{self, Source};
use crate::migration::target::Target;
use crate::transfer::{Transfer, TransferMessage};

impl Agent {
    pub(super) fn handle_relay(&mut self, now: Time, sender: ServerId, relay: &Relay) {
        match *relay {
            Relay::Prepare { flow, generation, .. } => self.handle_prepare(now, sender, flow, generation),
            Relay::Prepared { flow, generation, import } => {
                self.handle_prepared(now, flow, generation, import)
            }
        }
    }

    /// Another server asks this one to import a connection.
    fn handle_prepare(&mut self, now: Time, source: ServerId, flow: Flow, generation: u64) {
        let is_old = self.finished(&flow).is_some_and(|(last, _)| generation <= last)
            || self
                .owned
                .get(&flow)
                .is_some_and(|owned| owned.reclaim.is_none() || generation <= owned.generation);
        let place = self.place_of(flow.service()).and_then(|place| Site::new(place, self.settings.mac));
        let Some(place) = place.filter(|_| !is_old) else { return };
        if let Some(own) = self.sources.get(&flow) {
            // Only the flow's owner is relayed: the target of our move has come to own the flow.
            let is_moved = own.state().is_some() && source != self.settings.id;
            if !is_moved {
                return;
            }
            self.handle_outcome(now, flow, Some(source::Outcome::Moved));
        }
        let is_new = self.targets.get(&flow).is_none_or(|(_, target)| target.generation() < generation);
        if is_new && self.free_places == 0 && !self.owned.contains_key(&flow) {
            self.request(now, Request::Prepared { flow, asked: generation, import: Import::Refused });
            return;
        }
        if is_new {
            self.forget_requests(&flow);
            let target = Target::new(now, flow, generation, place, self.settings.times);
            self.targets.insert(flow, (source, target));
        }
        let prepared = self.targets.get(&flow).filter(|(_, target)| target.generation() == generation);
        if let Some(prepared) = prepared.map(|(_, target)| target.prepared()) {
            self.request(now, prepared);
        }
    }

    /// The target of a move is ready, or refuses.
    fn handle_prepared(&mut self, now: Time, flow: Flow, generation: u64, import: Import) {
        if let Some(source) = self.sources.get_mut(&flow) {
            let outcome = source.handle_prepared(now, generation, import);
            return self.handle_outcome(now, flow, outcome);
        }
        // A move that this server has given up: otherwise the client's packets would go to the target until its lifetime
        // ends.
        let is_new = self.owned.get(&flow).is_none_or(|owned| generation > owned.generation);
        let is_ready = matches!(import, Import::Ready(_));
        if is_new && is_ready && !self.targets.contains_key(&flow) && !self.lent.contains(&flow) {
            self.begin(flow, Source::settle(now, flow, generation, self.settings.times));
        }
    }

    /// Handles a message of another server.
    pub fn handle_transfer(&mut self, now: Time, from: ServerId, bytes: &[u8]) {
        let Some(TransferMessage { flow, generation, body }) = TransferMessage::parse(bytes) else { return };
        match body {
            Transfer::State(state) => self.handle_state(now, from, flow, generation, state),
            Transfer::Owned => {
                let outcome = self.sources.get(&flow).and_then(|source| source.handle_owned(generation));
                self.handle_outcome(now, flow, outcome);
            }
            Transfer::Refused => {
                if let Some(source) = self.sources.get_mut(&flow) {
                    source.handle_refused(now, generation);
                }
            }
            Transfer::Reclaim => self.handle_reclaim(now, from, flow),
        }
    }

    fn handle_state(&mut self, now: Time, from: ServerId, flow: Flow, generation: u64, state: Vec<u8>) {
        match self.targets.get_mut(&flow) {
            Some((_, target)) if target.generation() == generation => {
                if !target.is_waiting() {
                    return;
                }
                let is_here = self.owned.contains_key(&flow);
                match (state.is_empty(), is_here) {
                    (true, true) => target.receive(now, Arc::from(&[][..])),
                    (false, false) => {
                        self.events.push_back(Event::Check { flow, generation, state: Arc::from(state) });
                    }
                    _ => self.refuse(flow),
                }
            }
            _ => {
                let is_owned = self.finished(&flow) == Some((generation, true));
                let body = if is_owned { Transfer::Owned } else { Transfer::Refused };
                self.transfer(from, flow, generation, body);
            }
        }
    }

    /// An owner has lost its entry. The original owner, which owns every flow without an entry, moves the flow to it.
    fn handle_reclaim(&mut self, now: Time, from: ServerId, flow: Flow) {
        let may_lend = self.is_original() && self.membership.is_owner() && self.lent.contains(&flow);
        if !may_lend || self.sources.contains_key(&flow) || self.targets.contains_key(&flow) {
            return;
        }
        let replaces = self.owned.get(&flow).map_or(0, |owned| owned.generation);
        let target = self.site_of(from, &flow);
        self.lending.insert(flow);
        self.begin(flow, Source::new(now, flow, replaces, target, self.settings.times));
    }
}
