//! Measures a server's load for [`Settings::release`](crate::Settings::release): [`ReleaseSchedule`] releases helped
//! sessions when requests have been few and fast for a while (PostMan §5.3).

use std::mem::take;
use std::time::Duration;

use spillway_batch::Role;
use spillway_policy::Override;
use spillway_policy::release::{ReleaseCounters, ReleaseNotice, ReleaseSchedule, ReleaseSettings, Sample};
use spillway_transport::Time;

/// [`ReleaseSchedule`], and measurements since the last look.
#[derive(Debug)]
pub(super) struct Releasing {
    looks: ReleaseSchedule,
    requests: u64,
    helped: u64,
    /// When the first request of this turn was decomposed.
    turn_began: Option<Time>,
    /// Sum over `turns` turns of the time from the first request to the flush.
    served: Duration,
    turns: u32,
}

impl Releasing {
    pub(super) fn new(settings: ReleaseSettings, seed: u64) -> Releasing {
        Releasing {
            looks: ReleaseSchedule::new(Time::ZERO, settings, seed),
            requests: 0,
            helped: 0,
            turn_began: None,
            served: Duration::ZERO,
            turns: 0,
        }
    }

    /// Counts a request that arrived on a link of this role.
    pub(super) fn count_request(&mut self, now: Time, role: Role) {
        self.requests += 1;
        self.helped += u64::from(role == Role::Helper);
        self.turn_began.get_or_insert(now);
    }

    /// Counts a turn with requests, at its flush.
    pub(super) fn count_turn(&mut self, now: Time) {
        if let Some(began) = self.turn_began.take() {
            self.served += now.since(began);
            self.turns += 1;
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    pub(super) fn poll_timeout(&self) -> Time {
        self.looks.next_at()
    }

    /// Number of helped sessions to send back now.
    pub(super) fn handle_timeout(&mut self, now: Time, word: Override, helped_sessions: usize) -> usize {
        if self.looks.is_look_due(now) {
            let sample = self.sample(helped_sessions);
            self.looks.look(now, word, sample);
        }
        self.looks.take(now)
    }

    pub(super) fn poll_notice(&mut self) -> Option<ReleaseNotice> {
        self.looks.poll_notice()
    }

    pub(super) fn counters(&self) -> ReleaseCounters {
        *self.looks.counters()
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
