//! Clocks that differ between hosts: each runs fast or slow at a rate that changes.

use std::time::Duration;

use spillway_transport::Time;

use crate::rng::Rng;

/// Unit of a clock's rate: `PARTS` means one nanosecond per nanosecond of the world.
const PARTS: u64 = 1 << 20;
/// A rate is at most one part in 20 (5 %) off; real clocks are better.
const RATE_ERROR_ONE_IN: u64 = 20;
/// Maximum start value of a clock: machines boot at different times.
const AHEAD_NS_MAX: u64 = 3_600_000_000_000;
/// Maximum jump ahead, as when a virtual machine was suspended.
const JUMP_NS_MAX: u64 = 50_000_000;

/// The clock that a host's programs read. It never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// When the rate was last set, in the world's time and in the clock's own.
    set_at: Time,
    set_to: Time,
    rate: u64,
}

impl Clock {
    /// Equals the world's time.
    pub const TRUE: Clock = Clock { set_at: Time::ZERO, set_to: Time::ZERO, rate: PARTS };

    /// A clock with a random start value and rate.
    pub fn drawn(rng: &mut Rng) -> Clock {
        Clock { set_at: Time::ZERO, set_to: Time(rng.scale(1, AHEAD_NS_MAX)), rate: rate(rng) }
    }

    /// The clock's time at `now` of the world.
    pub fn read(&self, now: Time) -> Time {
        let passed = u128::from(now.0.saturating_sub(self.set_at.0)) * u128::from(self.rate);
        Time(self.set_to.0 + (passed / u128::from(PARTS)) as u64) // a rate of about 1: as much as has passed
    }

    /// The first moment of the world at which the clock shows `shown` or more.
    pub fn when(&self, shown: Time) -> Time {
        let wanted = u128::from(shown.0.saturating_sub(self.set_to.0)) * u128::from(PARTS);
        let passed = wanted.div_ceil(u128::from(self.rate));
        Time(self.set_at.0.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX)))
    }

    /// Changes the rate at `now`, and in one case of three jumps ahead.
    pub fn drift(&mut self, rng: &mut Rng, now: Time) {
        let jump = if rng.chance(1, 3) { rng.scale(1_000, JUMP_NS_MAX) } else { 0 };
        let set_to = self.read(now) + Duration::from_nanos(jump);
        *self = Clock { set_at: now, set_to, rate: rate(rng) };
    }
}

fn rate(rng: &mut Rng) -> u64 {
    rng.range(PARTS - PARTS / RATE_ERROR_ONE_IN, PARTS + PARTS / RATE_ERROR_ONE_IN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_never_goes_back_and_timers_are_never_early() {
        let mut rng = Rng::new(5);
        for _ in 0..100 {
            let mut clock = Clock::drawn(&mut rng);
            let (mut now, mut shown) = (Time(1), clock.read(Time(1)));
            for _ in 0..100 {
                now = now + Duration::from_nanos(rng.scale(1, 1_000_000_000_000));
                assert!(clock.read(now) >= shown);
                shown = clock.read(now);
                let timer = shown + Duration::from_nanos(rng.scale(1, 1_000_000_000_000));
                let due = clock.when(timer);
                assert!(clock.read(due) >= timer && clock.read(Time(due.0 - 2)) < timer);
                if rng.chance(1, 5) {
                    clock.drift(&mut rng, now);
                }
            }
        }
    }

    #[test]
    fn rates_are_wrong_by_five_percent_at_most() {
        let mut rng = Rng::new(6);
        for _ in 0..100 {
            let clock = Clock::drawn(&mut rng);
            let passed = clock.read(Time(100_000_000)) - clock.read(Time::ZERO);
            assert!((95_000_000..=105_000_000).contains(&passed.as_nanos()), "{passed:?}");
        }
    }

    #[test]
    fn the_true_clock_shows_the_time() {
        assert_eq!((Clock::TRUE.read(Time(77)), Clock::TRUE.when(Time(77))), (Time(77), Time(77)));
    }
}
