//! Sends helped sessions back when requests have been few and fast for a while (PostMan §5.3), if
//! [`Settings::release`](crate::Settings::release) says so. [`Looks`] decides; here is what it is told, and what it orders.

use std::mem::take;
use std::time::Duration;

use spillway_batch::Role;
use spillway_policy::release::{Looks, ReleaseCounters, ReleaseNotice, ReleaseSettings, Sample};
use spillway_transport::Time;

use super::Links;
use crate::event::LinkId;

/// What was seen since the last look.
#[derive(Debug)]
pub(super) struct Releasing {
    looks: Looks,
    requests: u64,
    helped: u64,
    /// The first request of this turn was taken apart.
    turn_began: Option<Time>,
    /// From there to the flush: of all turns together, and how many.
    served: Duration,
    turns: u32,
}

impl Releasing {
    pub(super) fn new(settings: ReleaseSettings, seed: u64) -> Releasing {
        Releasing {
            looks: Looks::new(Time::ZERO, settings, seed),
            requests: 0,
            helped: 0,
            turn_began: None,
            served: Duration::ZERO,
            turns: 0,
        }
    }

    fn sample(&mut self, helped_sessions: usize) -> Sample {
        Sample {
            requests: take(&mut self.requests),
            helped: take(&mut self.helped),
            service: take(&mut self.served).checked_div(take(&mut self.turns)),
            busy_percent: None,
            helped_sessions: u32::try_from(helped_sessions).unwrap_or(u32::MAX),
        }
    }
}

impl Links {
    /// A decision on sending sessions back, for the log. Ask after [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn poll_release_notice(&mut self) -> Option<ReleaseNotice> {
        self.releasing.as_mut()?.looks.poll_notice()
    }

    /// What came of [`Settings::release`](crate::Settings::release) since the beginning.
    pub fn release_counters(&self) -> ReleaseCounters {
        self.releasing.as_ref().map_or_else(ReleaseCounters::default, |one| *one.looks.counters())
    }

    /// A session's request came by way of this role.
    pub(super) fn count_request(&mut self, now: Time, role: Role) {
        if let Some(releasing) = &mut self.releasing {
            releasing.requests += 1;
            releasing.helped += u64::from(role == Role::Helper);
            releasing.turn_began.get_or_insert(now);
        }
    }

    /// A plain connection's request came on this link.
    pub(super) fn count_plain_request(&mut self, now: Time, link: LinkId) {
        if self.releasing.is_some()
            && let Some(role) = self.table.get(link).and_then(|entry| entry.end.role())
        {
            self.count_request(now, role);
        }
    }

    /// The turn's replies go.
    pub(super) fn count_turn(&mut self, now: Time) {
        if let Some(releasing) = &mut self.releasing
            && let Some(began) = releasing.turn_began.take()
        {
            releasing.served += now.since(began);
            releasing.turns += 1;
        }
    }

    /// Nothing while there are no sessions.
    pub(super) fn release_at(&self) -> Option<Time> {
        self.releasing.as_ref().filter(|_| self.carried.len() > 0).map(|one| one.looks.next_at())
    }

    pub(super) fn release_timeout(&mut self, now: Time) {
        if self.release_at().is_none_or(|at| at > now) {
            return;
        }
        let helped = self.carried.helped();
        let Some(releasing) = &mut self.releasing else { return };
        if releasing.looks.is_look_due(now) {
            let sample = releasing.sample(helped);
            releasing.looks.look(now, self.placement.word(), sample);
        }
        let home = releasing.looks.take(now);
        for (_, carrier, drain) in self.carried.return_home(home) {
            self.say_on(carrier, drain);
        }
    }
}
