//! Reports about other servers' requests, which are repeated until the origins have noted them.

use alloc::vec::Vec;
use core::ops::RangeInclusive;

use spillway_transport::Time;
use spillway_wire::handoff::{Body, NextServer};
use spillway_wire::state::HandedRequest;
use spillway_wire::switch::{Flow, ServerId};

use crate::migration::MoveTimes;
use crate::timed::{Deadline, Timed};

/// How often a report is sent before its origin is given up: for 270 ms with the default times.
const ATTEMPTS: u32 = 20;
/// Maximum number of reports that wait. Further ones are sent once.
const REPORTS_MAX: usize = 65_536;

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    Served,
    Abandoned,
    PassedOn(NextServer),
}

impl Report {
    /// The server that has the request now.
    fn next(self) -> Option<NextServer> {
        match self {
            Report::Served | Report::Abandoned => None,
            Report::PassedOn(next) => Some(next),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    flow: Flow,
    report: Report,
    attempts: u32,
    next_at: Time,
}

impl Deadline for Waiting {
    fn deadline(&self) -> Option<Time> {
        Some(self.next_at)
    }
}

/// The last report about each request, by origin and number.
#[derive(Debug)]
pub(super) struct Reports {
    waiting: Timed<(ServerId, u64), Waiting>,
}

impl Reports {
    pub(super) fn new() -> Reports {
        Reports { waiting: Timed::new() }
    }

    pub(super) fn add(&mut self, now: Time, flow: Flow, request: &HandedRequest, report: Report) {
        // Without room the only attempt is the last one.
        let attempts = if self.waiting.len() < REPORTS_MAX { 0 } else { ATTEMPTS - 1 };
        let key = (request.origin, request.number);
        self.waiting.insert(key, Waiting { flow, report, attempts, next_at: now });
    }

    /// The origin has a report. A newer one may have taken its place.
    pub(super) fn remove(&mut self, origin: ServerId, number: u64, next: Option<NextServer>) {
        let is_of = |waiting: &Waiting| waiting.report.next() == next;
        if self.waiting.get(&(origin, number)).is_some_and(is_of) {
            self.waiting.remove(&(origin, number));
        }
    }

    /// The request has come here again.
    pub(super) fn forget(&mut self, request: &HandedRequest) {
        self.waiting.remove(&(request.origin, request.number));
    }

    /// A new run of an origin does not know the requests of the run before.
    pub(super) fn forget_origin(&mut self, origin: ServerId) {
        let all: RangeInclusive<_> = (origin, 0)..=(origin, u64::MAX);
        let keys: Vec<_> = self.waiting.range(all).map(|(key, _)| *key).collect();
        for key in keys {
            self.waiting.remove(&key);
        }
    }

    pub(super) fn next_at(&self) -> Option<Time> {
        self.waiting.next_at()
    }

    /// The next report that is due, and its receiver.
    pub(super) fn poll(&mut self, now: Time, times: &MoveTimes) -> Option<(ServerId, Flow, Body<'static>)> {
        let key = self.waiting.first_due(now)?;
        let (origin, number) = key;
        let sent = self.waiting.update(&key, |waiting| {
            waiting.next_at = now + times.interval(waiting.attempts);
            waiting.attempts += 1;
            *waiting
        })?;
        if sent.attempts >= ATTEMPTS {
            self.waiting.remove(&key);
        }
        let body = match sent.report {
            Report::Served => Body::Served(number),
            Report::Abandoned => Body::Abandoned(number),
            Report::PassedOn(next) => Body::PassedOn(number, next),
        };
        Some((origin, sent.flow, body))
    }
}
