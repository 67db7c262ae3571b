//! When a server looks at itself and sends sessions back: [`Release`] by the clock.

use core::time::Duration;

use spillway_transport::Time;

use super::{Release, ReleaseCounters, ReleaseNotice, ReleaseSettings, Sample};
use crate::word::Word;

/// A burst that is relieved within one look would be seen only in part.
const LOOK: Duration = Duration::from_millis(250);
/// Sessions are sent back in bunches of so much time; [`Release`] allows it.
const TOGETHER: Duration = Duration::from_millis(50);

/// At [`next_at`](Self::next_at): [`look`](Self::look) if [`is_look_due`](Self::is_look_due), then [`take`](Self::take).
#[derive(Debug)]
pub struct Looks {
    release: Release,
    /// The operator's, as it was told last.
    word: Word,
    looked_at: Time,
    next_at: Time,
}

impl Looks {
    /// The first look is one interval away. `seed`: as [`Release::new`] has it.
    pub fn new(now: Time, settings: ReleaseSettings, seed: u64) -> Looks {
        let release = Release::new(now, settings, seed);
        Looks { release, word: Word::Auto, looked_at: now, next_at: now + LOOK }
    }

    /// How long a look is due after the one before it.
    pub const fn interval() -> Duration {
        LOOK
    }

    /// When there is something to do next.
    pub fn next_at(&self) -> Time {
        self.next_at
    }

    /// Whether the server is to look at itself now.
    pub fn is_look_due(&self, now: Time) -> bool {
        self.looked_at + LOOK <= now
    }

    /// What it sees. The operator's word *off* counts as *auto* here: who gives it has sent all back already.
    pub fn look(&mut self, now: Time, word: Word, sample: Sample) {
        let word = if word == Word::On { Word::On } else { Word::Auto };
        if core::mem::replace(&mut self.word, word) != word {
            self.release.say(word);
        }
        self.looked_at = now;
        self.release.look(now, sample);
    }

    /// How many helped sessions, any of them, are to be sent back now.
    pub fn take(&mut self, now: Time) -> usize {
        let mut count = 0;
        while self.release.poll(now) {
            count += 1;
        }
        let look = self.looked_at + LOOK;
        self.next_at = self.release.poll_timeout().map_or(look, |at| look.min(at.max(now + TOGETHER)));
        count
    }

    /// The last decision, for the log.
    #[must_use]
    pub fn poll_notice(&mut self) -> Option<ReleaseNotice> {
        self.release.poll_notice()
    }

    /// What has happened since the beginning.
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
        let mut looks = Looks::new(Time::ZERO, settings, 1);
        let (mut left, mut bunches, mut seen) = (1_000, 0, 0);
        while looks.next_at() < Time(20_000_000_000) {
            let now = looks.next_at();
            if looks.is_look_due(now) {
                seen += 1;
                let requests = if seen < 8 { 1_000 } else { 10 };
                let sample =
                    Sample { requests, helped: requests, helped_sessions: left, ..Sample::default() };
                looks.look(now, Word::Off, sample);
            }
            let home = looks.take(now) as u32;
            assert!(home <= 30, "{home} at once");
            (left, bunches) = (left.saturating_sub(home), bunches + u32::from(home > 0));
        }
        assert_eq!((left, seen), (0, 79), "a look each 250 ms, whatever is between");
        assert!((50..=110).contains(&bunches), "over five seconds: {bunches}");
    }
}
