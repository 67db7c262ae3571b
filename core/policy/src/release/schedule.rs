//! Timing of [`Release`]: when to take a [`Sample`] and when to send sessions back.

use core::time::Duration;

use spillway_transport::Time;

use super::{Release, ReleaseCounters, ReleaseNotice, ReleaseSettings, Sample};
use crate::relief_override::Override;

/// Interval of looks. A burst that is relieved between two looks is seen only in part, so the interval is short.
const LOOK: Duration = Duration::from_millis(250);
/// Minimum interval of sending sessions back: sessions that are due meanwhile return together.
const TOGETHER: Duration = Duration::from_millis(50);

/// A [`Release`] with its timing. At [`next_at`](Self::next_at) call [`look`](Self::look) if
/// [`is_look_due`](Self::is_look_due), then [`take`](Self::take).
#[derive(Debug)]
pub struct ReleaseSchedule {
    release: Release,
    /// The override that `release` has.
    word: Override,
    looked_at: Time,
    next_at: Time,
}

impl ReleaseSchedule {
    /// The first look is due after one interval. `seed`: see [`Release::new`].
    pub fn new(now: Time, settings: ReleaseSettings, seed: u64) -> ReleaseSchedule {
        let release = Release::new(now, settings, seed);
        ReleaseSchedule { release, word: Override::Auto, looked_at: now, next_at: now + LOOK }
    }

    /// The interval of looks.
    pub const fn interval() -> Duration {
        LOOK
    }

    /// When to call [`take`](Self::take) next, after a look if one is due.
    pub fn next_at(&self) -> Time {
        self.next_at
    }

    /// Whether a [`Sample`] is due.
    pub fn is_look_due(&self, now: Time) -> bool {
        self.looked_at + LOOK <= now
    }

    /// Passes a sample. The override *off* counts as *auto* here, because its caller has sent all sessions back already.
    pub fn look(&mut self, now: Time, word: Override, sample: Sample) {
        let word = if word == Override::On { Override::On } else { Override::Auto };
        if core::mem::replace(&mut self.word, word) != word {
            self.release.say(word);
        }
        self.looked_at = now;
        self.release.look(now, sample);
    }

    /// How many helped sessions to send back now; any of them will do.
    pub fn take(&mut self, now: Time) -> usize {
        let mut count = 0;
        while self.release.poll(now) {
            count += 1;
        }
        let look = self.looked_at + LOOK;
        self.next_at = self.release.poll_timeout().map_or(look, |at| look.min(at.max(now + TOGETHER)));
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
    fn looks_go_on_and_sessions_return_in_bunches() {
        let settings = ReleaseSettings { low_for: Duration::from_secs(1), ..ReleaseSettings::default() };
        let mut looks = ReleaseSchedule::new(Time::ZERO, settings, 1);
        let (mut left, mut bunches, mut seen) = (1_000, 0, 0);
        while looks.next_at() < Time(20_000_000_000) {
            let now = looks.next_at();
            if looks.is_look_due(now) {
                seen += 1;
                let requests = if seen < 8 { 1_000 } else { 10 };
                let sample =
                    Sample { requests, helped: requests, helped_sessions: left, ..Sample::default() };
                looks.look(now, Override::Off, sample);
            }
            let home = looks.take(now) as u32;
            assert!(home <= 30, "{home} at once");
            (left, bunches) = (left.saturating_sub(home), bunches + u32::from(home > 0));
        }
        assert_eq!((left, seen), (0, 79), "a look each 250 ms, whatever is between");
        assert!((50..=110).contains(&bunches), "over five seconds: {bunches}");
    }
}
