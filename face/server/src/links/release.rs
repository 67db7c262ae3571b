//! Sends helped sessions back when requests have been few and fast for a while (PostMan §5.3), if
//! [`Settings::release`](crate::Settings::release) says so. [`Release`] decides; here is what it is told, and what it orders.

use std::time::Duration;

use spillway_batch::Role;
use spillway_policy::Word;
use spillway_policy::release::{Release, ReleaseCounters, ReleaseNotice, ReleaseSettings, Sample};
use spillway_transport::Time;

use super::Links;

/// A burst that is relieved within one look would be seen only in part.
const LOOK: Duration = Duration::from_millis(250);
/// Sessions are sent back in bunches of so much time.
const TOGETHER: Duration = Duration::from_millis(50);

/// What was seen since the last look.
#[derive(Debug)]
pub(super) struct Releasing {
    release: Release,
    /// The operator's, as it was told.
    word: Word,
    looked_at: Time,
    /// When there is something to do, if there are sessions.
    next: Time,
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
            release: Release::new(Time::ZERO, settings, seed),
            word: Word::Auto,
            looked_at: Time::ZERO,
            next: Time::ZERO + LOOK,
            requests: 0,
            helped: 0,
            turn_began: None,
            served: Duration::ZERO,
            turns: 0,
        }
    }

    fn look(&mut self, now: Time, word: Word, helped_sessions: u32) {
        // *off* has sent all back already.
        let word = if word == Word::On { Word::On } else { Word::Auto };
        if std::mem::replace(&mut self.word, word) != word {
            self.release.say(word);
        }
        let sample = Sample {
            requests: std::mem::take(&mut self.requests),
            helped: std::mem::take(&mut self.helped),
            service: std::mem::take(&mut self.served).checked_div(std::mem::take(&mut self.turns)),
            busy_percent: None,
            helped_sessions,
        };
        self.looked_at = now;
        self.release.look(now, sample);
    }
}

impl Links {
    /// A decision on sending sessions back, for the log. Ask after [`handle_timeout`](Self::handle_timeout).
    pub fn poll_release_notice(&mut self) -> Option<ReleaseNotice> {
        self.releasing.as_mut()?.release.poll_notice()
    }

    /// What came of [`Settings::release`](crate::Settings::release) since the beginning.
    pub fn release_counters(&self) -> ReleaseCounters {
        self.releasing.as_ref().map_or_else(ReleaseCounters::default, |one| *one.release.counters())
    }

    /// A request came by way of this role.
    pub(super) fn count_request(&mut self, now: Time, role: Role) {
        if let Some(releasing) = &mut self.releasing {
            releasing.requests += 1;
            releasing.helped += u64::from(role == Role::Helper);
            releasing.turn_began.get_or_insert(now);
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
        self.releasing.as_ref().filter(|_| self.carried.len() > 0).map(|releasing| releasing.next)
    }

    pub(super) fn release_timeout(&mut self, now: Time) {
        if self.release_at().is_none_or(|at| at > now) {
            return;
        }
        let helped = self.carried.carriers().filter(|(_, role, _)| *role == Role::Helper).count();
        let Some(releasing) = &mut self.releasing else { return };
        if releasing.looked_at + LOOK <= now {
            releasing.look(now, self.wanted.word(), u32::try_from(helped).unwrap_or(u32::MAX));
        }
        let mut home = 0;
        while releasing.release.poll(now) {
            home += 1;
        }
        let soon = releasing.release.poll_timeout().map(|at| at.max(now + TOGETHER));
        let look = releasing.looked_at + LOOK;
        releasing.next = soon.map_or(look, |soon| soon.min(look));
        for carrier in self.carried.next_to_return(home) {
            self.say_drain(carrier, 0);
        }
    }
}
