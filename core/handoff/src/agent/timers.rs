//! Messages that are due by time: those of the membership, retransmissions of moves, reclaims and releases.

use alloc::vec::Vec;

use spillway_transport::Time;
use spillway_wire::handoff::{Body, Reason};
use spillway_wire::switch::Request;

use super::Agent;
use crate::event::Cause;
use crate::membership::Due;
use crate::reclaim::time_for_all;
use crate::trace::{End, Step};

/// Maximum number of unanswered releases of a flow.
const RELEASES_MAX: u32 = 20;
/// Interval between two releases of a flow, in intervals of [`MoveTimes::asking`](crate::MoveTimes).
const RELEASE_INTERVALS: u32 = 4;

impl Agent {
    /// When to call [`Agent::handle_timeout`].
    pub fn poll_timeout(&self) -> Time {
        let mut next_at = self.membership.poll_timeout();
        let others = [self.peers.poll_timeout(), self.requests.poll_timeout()];
        next_at = others.into_iter().flatten().fold(next_at, Time::min);
        if self.membership.is_owner() {
            let sources = self.sources.values().filter_map(|source| source.poll_timeout());
            let targets = self.targets.values().filter_map(|(_, target)| target.poll_timeout());
            // Moves are few; flows that are here or have ended may be many.
            let all = sources.chain(targets).chain(self.owned.next_at()).chain(self.ended.next_at());
            next_at = all.fold(next_at, Time::min);
        }
        next_at
    }

    /// Queues what is due. Then call [`poll_transmit`](Agent::poll_transmit) and [`poll_event`](Agent::poll_event).
    pub fn handle_timeout(&mut self, now: Time) {
        self.peers.greet(now);
        self.poll_requests(now);
        if let Some(due) = self.membership.poll(now) {
            let request = match due {
                Due::Hello => {
                    // Answers to requests from before the hello belong to another term.
                    self.waiting.clear();
                    self.loads.forget_requests();
                    Request::Hello
                }
                Due::Heartbeat => Request::Heartbeat {
                    service: self.settings.services[0].endpoint,
                    load: self.load,
                    free_places: self.free_places,
                    weight: 1,
                },
            };
            let sequence = self.request(now, request);
            self.membership.record_sent(now, sequence);
            if due == Due::Heartbeat {
                self.request_loads(now);
            }
        }
        if self.membership.is_owner() {
            self.poll_sources(now);
            self.poll_targets(now);
            self.poll_reclaims(now);
            self.poll_releases(now);
        }
    }

    fn poll_sources(&mut self, now: Time) {
        let expired = self.sources.iter().filter(|(_, source)| source.is_expired(now));
        for flow in expired.map(|(flow, _)| *flow).collect::<Vec<_>>() {
            self.let_go(now, flow, Cause::Restart);
        }
        let mut requests = Vec::new();
        for (flow, source) in &mut self.sources {
            requests.extend(source.poll(now));
            if source.poll_timeout().is_some_and(|at| at <= now) {
                self.ready.insert(*flow);
            }
        }
        for request in requests {
            if let Request::Prepare { flow, .. } = &request {
                self.trace_step(flow, End::Source, Step::SendPrepare);
            }
            self.request(now, request);
        }
    }

    fn poll_targets(&mut self, now: Time) {
        let expired = self.targets.iter().filter(|(_, (_, target))| target.is_expired(now));
        for flow in expired.map(|(flow, _)| *flow).collect::<Vec<_>>() {
            self.refuse(now, flow, Reason::Late);
        }
        let mut requests = Vec::new();
        for (flow, (_, target)) in &mut self.targets {
            requests.extend(target.poll(now));
            if target.owes_received(now) {
                self.ready.insert(*flow);
            }
        }
        for request in requests {
            self.request(now, request);
        }
    }

    fn poll_reclaims(&mut self, now: Time) {
        let interval = self.settings.times.asking().max(time_for_all(self.owned.len()));
        for flow in self.owned.due(now) {
            let reclaim = self.owned.get(&flow).and_then(|owned| owned.reclaim);
            let Some((until, _)) = reclaim else { continue };
            // The original owner may begin one attempt after the other, and hear *prepared* too late each time. An attempt that
            // has reached *own* is decided by the entry.
            let attempt = self.targets.get(&flow);
            if now >= until && attempt.is_none_or(|(_, target)| target.is_waiting()) {
                self.refuse(now, flow, Reason::Late);
                self.give_up(flow, Cause::Restart);
                continue;
            }
            let next_at = now + interval;
            self.owned.update(&flow, |owned| owned.reclaim = Some((until, next_at)));
            if let Some(original) = self.original(&flow) {
                self.send(original, flow, 0, Body::Reclaim);
            }
        }
    }

    fn poll_releases(&mut self, now: Time) {
        for flow in self.ended.due(now) {
            let owned = self.owned.get(&flow).copied();
            let next_at = now + self.settings.times.asking() * RELEASE_INTERVALS;
            // The move of the connection is not settled: the entry is not known yet.
            let is_moving = self.sources.contains_key(&flow);
            // The flow is not taken back yet: it has no entry.
            let is_requested = owned.is_some_and(|owned| owned.reclaim.is_some());
            if is_moving || is_requested {
                self.ended.update(&flow, |ended| ended.next_at = next_at);
                continue;
            }
            let releases = self.ended.update(&flow, |ended| {
                (ended.next_at, ended.releases) = (next_at, ended.releases + 1);
                ended.releases
            });
            let generation = owned.map(|owned| owned.generation);
            match generation.zip(releases) {
                Some((generation, releases)) if releases <= RELEASES_MAX => {
                    self.request(now, Request::Release { flow, generation });
                }
                _ => self.end_release(&flow),
            }
        }
    }
}
