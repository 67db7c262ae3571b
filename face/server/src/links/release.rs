//! Measures a server's load for [`Settings::release`](crate::Settings::release): [`ReleaseSchedule`] releases helped
//! sessions when requests have been few and fast for a while (PostMan §5.3).

use std::mem::take;
use std::time::Duration;

use spillway_batch::Role;
use spillway_policy::Override;
use spillway_policy::release::{
    OutOfBounds, ReleaseCounters, ReleaseNotice, ReleaseSchedule, ReleaseSettings, Sample,
};
use spillway_transport::Time;

/// A [`ReleaseSchedule`], and the measurements since its latest sample.
#[derive(Debug)]
pub(super) struct AutomaticRelease {
    schedule: ReleaseSchedule,
    requests: u64,
    helped: u64,
    /// When the first request of this turn was decomposed.
    turn_began: Option<Time>,
    /// Sum over `turns` turns of the time from the first request to the flush.
    service_sum: Duration,
    turns: u32,
}

impl AutomaticRelease {
    pub(super) fn new(settings: ReleaseSettings, seed: u64) -> Result<AutomaticRelease, OutOfBounds> {
        Ok(AutomaticRelease {
            schedule: ReleaseSchedule::new(Time::ZERO, settings, seed)?,
            requests: 0,
            helped: 0,
            turn_began: None,
            service_sum: Duration::ZERO,
            turns: 0,
        })
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
            self.service_sum += now.since(began);
            self.turns += 1;
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    pub(super) fn poll_timeout(&self) -> Time {
        self.schedule.next_at()
    }

    /// Number of helped sessions to send back now.
    pub(super) fn handle_timeout(
        &mut self,
        now: Time,
        manual_override: Override,
        helped_sessions: usize,
    ) -> usize {
        if self.schedule.is_look_due(now) {
            let sample = self.sample(helped_sessions);
            self.schedule.sample(now, manual_override, sample);
        }
        self.schedule.take(now)
    }

    pub(super) fn poll_notice(&mut self) -> Option<ReleaseNotice> {
        self.schedule.poll_notice()
    }

    pub(super) fn counters(&self) -> ReleaseCounters {
        *self.schedule.counters()
    }

    fn sample(&mut self, helped_sessions: usize) -> Sample {
        Sample {
            requests: take(&mut self.requests),
            helped: take(&mut self.helped),
            service: take(&mut self.service_sum).checked_div(take(&mut self.turns)),
            busy_percent: None,
            helped_sessions: u32::try_from(helped_sessions).unwrap_or(u32::MAX),
        }
    }
}
