//! Timing of [`Release`]: when to take a [`Sample`] and when to send sessions back.

use core::time::Duration;

use spillway_transport::Time;

use super::{OutOfBounds, Release, ReleaseCounters, ReleaseNotice, ReleaseSettings, Sample};
use crate::relief_override::Override;

/// Interval of looks. It is short, because a burst that is relieved between two looks is measured only in part.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Minimum interval of sending sessions back: all sessions that became due within it return together.
const GROUP_INTERVAL: Duration = Duration::from_millis(50);

/// A [`Release`] with its timing. At [`next_at`](Self::next_at) call [`sample`](Self::sample) if
/// [`is_look_due`](Self::is_look_due), then [`take`](Self::take).
#[derive(Debug)]
pub struct ReleaseSchedule {
    release: Release,
    /// The last override passed to `release`.
    relief_override: Override,
    looked_at: Time,
    next_at: Time,
}

impl ReleaseSchedule {
    /// The first look is due after one interval. `seed`: see [`Release::new`].
    ///
    /// # Errors
    /// A setting is out of its bounds.
    pub fn new(now: Time, settings: ReleaseSettings, seed: u64) -> Result<ReleaseSchedule, OutOfBounds> {
        let release = Release::new(now, settings, seed)?;
        Ok(ReleaseSchedule {
            release,
            relief_override: Override::Auto,
            looked_at: now,
            next_at: now + LOOK_INTERVAL,
        })
    }

    /// The interval of looks.
    pub const fn interval() -> Duration {
        LOOK_INTERVAL
    }

    /// When to call [`take`](Self::take) next, after a look if one is due.
    pub fn next_at(&self) -> Time {
        self.next_at
    }

    /// Whether a [`Sample`] is due.
    pub fn is_look_due(&self, now: Time) -> bool {
        self.looked_at + LOOK_INTERVAL <= now
    }

    /// Passes a sample. The override *off* counts as *auto*, because the caller has sent all sessions back already.
    pub fn sample(&mut self, now: Time, relief_override: Override, sample: Sample) {
        let applied = if relief_override == Override::On { Override::On } else { Override::Auto };
        if core::mem::replace(&mut self.relief_override, applied) != applied {
            self.release.set_override(applied);
        }
        self.looked_at = now;
        self.release.sample(now, sample);
    }

    /// Number of helped sessions, of the caller's choice, to send back now.
    pub fn take(&mut self, now: Time) -> usize {
        let mut count = 0;
        while self.release.poll_drain(now) {
            count += 1;
        }
        let next_look = self.looked_at + LOOK_INTERVAL;
        self.next_at =
            self.release.poll_timeout().map_or(next_look, |at| next_look.min(at.max(now + GROUP_INTERVAL)));
        count
    }

    /// The latest decision, for the log.
    #[must_use]
    pub fn poll_notice(&mut self) -> Option<ReleaseNotice> {
        self.release.poll_notice()
    }

    /// Counters since the start.
    pub fn counters(&self) -> &ReleaseCounters {
        self.release.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_keep_their_interval_while_sessions_return_in_groups() {
        let settings = ReleaseSettings { low_for: Duration::from_secs(1), ..ReleaseSettings::default() };
        let mut schedule = ReleaseSchedule::new(Time::ZERO, settings, 1).unwrap();
        let (mut left, mut groups, mut looks) = (1_000, 0, 0);
        while schedule.next_at() < Time(20_000_000_000) {
            let now = schedule.next_at();
            if schedule.is_look_due(now) {
                looks += 1;
                let requests = if looks < 8 { 1_000 } else { 10 };
                let sample =
                    Sample { requests, helped: requests, helped_sessions: left, ..Sample::default() };
                schedule.sample(now, Override::Off, sample);
            }
            let returning = schedule.take(now) as u32;
            // 1,000 sessions in 100 groups are 10 each; a group may be three times as large.
            assert!(returning <= 30, "at most 30 sessions should return at once, not {returning}");
            (left, groups) = (left.saturating_sub(returning), groups + u32::from(returning > 0));
        }
        assert_eq!((left, looks), (0, 79), "a look should be due every 250 ms for 20 s");
        // 5 s in steps of 50 ms are 100 groups.
        assert!(
            (50..=110).contains(&groups),
            "sessions should return in groups 50 ms apart for 5 s: {groups}"
        );
    }
}
