//! Requests of this server that other servers have.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::handoff::NextServer;
use spillway_wire::state::HandedRequest;
use spillway_wire::switch::{Flow, ServerId};

use crate::timed::{Deadline, Timed};

/// After this time without a report a request counts as lost.
const REPORT_WITHIN: Duration = Duration::from_secs(600);
/// The same, if it is not sure that another server has the request.
const REPORT_WITHIN_IN_DOUBT: Duration = Duration::from_secs(5);

/// A request of this server that another server has, or to which it is moving.
#[derive(Clone, Copy, Debug)]
struct Away {
    flow: Flow,
    at: ServerId,
    hops_left: u8,
    until: Time,
}

impl Deadline for Away {
    fn deadline(&self) -> Option<Time> {
        Some(self.until)
    }
}

/// The requests by number.
#[derive(Debug)]
pub(super) struct Ours {
    away: Timed<u64, Away>,
    /// The numbers by flow: thousands of connections may be lost at once.
    by_flow: BTreeSet<(Flow, u64)>,
    next_number: u64,
    requests_max: usize,
}

impl Ours {
    pub(super) fn new(first_number: u64, requests_max: usize) -> Ours {
        Ours { away: Timed::new(), by_flow: BTreeSet::new(), next_number: first_number, requests_max }
    }

    pub(super) fn take_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        number
    }

    pub(super) fn has_room(&self) -> bool {
        self.away.len() < self.requests_max
    }

    pub(super) fn len(&self) -> usize {
        self.away.len()
    }

    pub(super) fn add(&mut self, now: Time, flow: Flow, at: ServerId, request: &HandedRequest) {
        let away = Away { flow, at, hops_left: request.hops_left, until: now + REPORT_WITHIN };
        self.take(request.number);
        self.away.insert(request.number, away);
        self.by_flow.insert((flow, request.number));
    }

    /// The request is not away any more.
    pub(super) fn remove(&mut self, number: u64) {
        self.take(number);
    }

    /// The request has ended elsewhere. Returns whether it was away, with its connection of this flow.
    pub(super) fn end(&mut self, number: u64, flow: &Flow) -> bool {
        let is_known = self.away.get(&number).is_some_and(|away| away.flow == *flow);
        if is_known {
            self.take(number);
        }
        is_known
    }

    /// Another server has the request now. Reports may overtake each other: each hop leaves fewer.
    pub(super) fn pass_on(&mut self, now: Time, number: u64, flow: &Flow, next: NextServer) {
        self.away.update(&number, |away| {
            if away.flow == *flow && next.hops_left < away.hops_left {
                let (at, hops_left) = (next.id, next.hops_left);
                *away = Away { at, hops_left, until: now + REPORT_WITHIN, ..*away };
            }
        });
    }

    /// It is not sure that another server has the request.
    pub(super) fn doubt(&mut self, now: Time, number: u64) {
        self.away.update(&number, |away| away.until = away.until.min(now + REPORT_WITHIN_IN_DOUBT));
    }

    /// Removes and returns the requests that a server has which has restarted. `is_leaving`: the move of the flow decides.
    pub(super) fn lost_with(
        &mut self,
        server: ServerId,
        is_leaving: impl Fn(&Flow) -> bool,
    ) -> Vec<(Flow, u64)> {
        let is_meant = |away: &Away| away.at == server && !is_leaving(&away.flow);
        let meant = self.away.iter().filter(|(_, away)| is_meant(away)).map(|(number, _)| *number);
        meant.collect::<Vec<_>>().into_iter().filter_map(|number| self.take(number)).collect()
    }

    /// Removes and returns the requests whose connections had this flow.
    pub(super) fn lost_of(&mut self, flow: &Flow) -> Vec<(Flow, u64)> {
        let numbers = self.by_flow.range((*flow, 0)..=(*flow, u64::MAX)).map(|(_, number)| *number);
        numbers.collect::<Vec<_>>().into_iter().filter_map(|number| self.take(number)).collect()
    }

    /// Removes and returns the requests about which nothing was heard.
    pub(super) fn expired(&mut self, now: Time) -> Vec<(Flow, u64)> {
        let due = self.away.due(now);
        due.into_iter().filter_map(|number| self.take(number)).collect()
    }

    pub(super) fn next_at(&self) -> Option<Time> {
        self.away.next_at()
    }

    fn take(&mut self, number: u64) -> Option<(Flow, u64)> {
        let flow = self.away.get(&number)?.flow;
        self.away.remove(&number);
        self.by_flow.remove(&(flow, number));
        Some((flow, number))
    }
}
