//! So many moves a second and no more, at distances that differ a little.
//!
//! A move costs the server a connection. All at once they cost the burst another second; about 100 µs between two of
//! them was best where we tried (`docs/measurements.md`).

use core::time::Duration;

use spillway_parts::Random;
use spillway_transport::Time;

/// Whoever comes late to a move, for timers are coarse, may catch up on so much, unless told otherwise; what lies further
/// back is forgotten, so that no burst follows a time in which nothing moved.
const CATCH_UP: Duration = Duration::from_millis(10);

/// Lets moves pass, at most so many in any second.
#[derive(Clone, Debug)]
pub struct Limiter {
    /// Between two moves, before jitter.
    distance: Duration,
    catch_up: Duration,
    next_at: Time,
}

impl Limiter {
    /// Of so many moves a second; 0 counts as 1.
    pub fn new(per_s_max: u32) -> Limiter {
        // 2 % longer than it need be, for what is caught up on comes on top of a second's moves.
        let distance = Duration::from_nanos(1_020_000_000 / u64::from(per_s_max.max(1)) + 1);
        Limiter { distance, catch_up: CATCH_UP, next_at: Time::ZERO }
    }

    /// For one who comes so seldom that he moves several together.
    pub(crate) fn catching_up_on(self, catch_up: Duration) -> Limiter {
        Limiter { catch_up, ..self }
    }

    /// Whether a move may happen now; if so it has. `random`: from 0 to 65,535, makes the distance to the next one up to
    /// a tenth longer.
    pub fn take(&mut self, now: Time, random: u16) -> bool {
        if now < self.next_at {
            return false;
        }
        let due = if now.since(self.next_at) > self.catch_up { now } else { self.next_at };
        self.next_at = due + self.distance + self.distance / 10 * u32::from(random) / u32::from(u16::MAX);
        true
    }

    /// When the next one may happen.
    pub fn next_at(&self) -> Time {
        self.next_at
    }

    #[expect(clippy::cast_possible_truncation, reason = "any 16 bits of a random word")]
    pub(crate) fn take_at_random(&mut self, now: Time, random: &mut Random) -> bool {
        now >= self.next_at && self.take(now, random.word() as u16)
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use alloc::vec::Vec;

    use super::*;

    /// When moves pass, if somebody asks at these times as often as he may.
    fn passed(per_s_max: u32, asked_at_us: impl Iterator<Item = u64>) -> Vec<u64> {
        let (mut limiter, mut random) = (Limiter::new(per_s_max), Random::new(7));
        let mut passed = Vec::new();
        for us in asked_at_us {
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
    fn the_cap_holds_in_any_second_and_is_nearly_reached() {
        for per_s in [1, 3, 10, 100, 5_000] {
            let fine = passed(per_s, (0..3_000_000).step_by(50));
            let most = most_in_a_second(&fine);
            assert!(most <= per_s as usize && most * 10 >= per_s as usize * 9, "{most} of {per_s}");
        }
    }

    #[test]
    fn coarse_timers_catch_up_but_idle_time_is_forgotten() {
        let coarse = passed(5_000, (0..1_000_000).step_by(4_000));
        assert!((4_400..=5_000).contains(&coarse.len()), "{}", coarse.len());
        let after_idle = passed(5_000, [0, 60_000_000].into_iter());
        assert_eq!(after_idle, [0, 60_000_000], "one move, and the next in its time");
    }
}
