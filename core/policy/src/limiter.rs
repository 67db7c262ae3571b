//! A rate limit on moves, with jittered intervals.
//!
//! Each move costs the server a new connection, so a burst of moves would prolong the overload.

use core::time::Duration;

use spillway_parts::Random;
use spillway_transport::Time;

/// Default time for which a late caller may make up moves, because timers are coarse. Moves of earlier times are lost,
/// so that no burst follows an idle time.
const CATCH_UP: Duration = Duration::from_millis(10);

/// Bounds the number of moves in any second.
#[derive(Clone, Debug)]
pub struct Limiter {
    /// Time between two moves, without jitter.
    interval: Duration,
    catch_up: Duration,
    next_at: Time,
}

impl Limiter {
    /// At most `per_s_max` moves a second; 0 counts as 1.
    pub fn new(per_s_max: u32) -> Limiter {
        // 2 % longer than necessary, because moves that a late caller makes up add to those of a second.
        let interval = Duration::from_nanos(1_020_000_000 / u64::from(per_s_max.max(1)) + 1);
        Limiter { interval, catch_up: CATCH_UP, next_at: Time::ZERO }
    }

    /// Sets for how long a late caller may make up moves; for callers that poll seldom.
    pub(crate) fn with_catch_up(self, catch_up: Duration) -> Limiter {
        Limiter { catch_up, ..self }
    }

    /// Returns whether a move may happen now, and counts the move if so. `random` makes the next interval up to a tenth
    /// longer.
    pub fn take(&mut self, now: Time, random: u16) -> bool {
        if now < self.next_at {
            return false;
        }
        let due = if now.since(self.next_at) > self.catch_up { now } else { self.next_at };
        self.next_at = due + self.interval + self.interval / 10 * u32::from(random) / u32::from(u16::MAX);
        true
    }

    /// When the next move may happen.
    pub fn next_at(&self) -> Time {
        self.next_at
    }

    #[expect(clippy::cast_possible_truncation, reason = "any 16 bits of a random word are random")]
    pub(crate) fn take_at_random(&mut self, now: Time, random: &mut Random) -> bool {
        now >= self.next_at && self.take(now, random.word() as u16)
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use alloc::vec::Vec;

    use super::*;

    /// The times of moves, in µs, of a caller that makes as many moves as allowed at each of these times.
    fn move_times(per_s_max: u32, called_at_us: impl Iterator<Item = u64>) -> Vec<u64> {
        let (mut limiter, mut random) = (Limiter::new(per_s_max), Random::new(7));
        let mut passed = Vec::new();
        for us in called_at_us {
            while limiter.take_at_random(Time(us * 1000), &mut random) {
                passed.push(us);
            }
        }
        passed
    }

    fn most_in_a_second(passed: &[u64]) -> usize {
        let within =
            |first: &u64| passed.iter().filter(|us| (*first..first + 1_000_000).contains(us)).count();
        passed.iter().map(within).max().unwrap_or(0)
    }

    #[test]
    fn rate_in_any_second_is_within_the_limit_and_near_it() {
        for per_s in [1, 3, 10, 100, 5_000] {
            let fine = move_times(per_s, (0..3_000_000).step_by(50));
            let most = most_in_a_second(&fine);
            assert!(
                most <= per_s as usize && most * 10 >= per_s as usize * 9,
                "the rate should be within the limit and at least nine tenths of it: {most} of {per_s}"
            );
        }
    }

    #[test]
    fn late_caller_makes_up_moves_but_not_those_of_an_idle_time() {
        let coarse = move_times(5_000, (0..1_000_000).step_by(4_000));
        assert!(
            (4_400..=5_000).contains(&coarse.len()),
            "a late caller should make up the moves of its own delay only: {}",
            coarse.len()
        );
        let after_idle = move_times(5_000, [0, 60_000_000].into_iter());
        assert_eq!(after_idle, [0, 60_000_000], "one move should follow the idle time");
    }
}
