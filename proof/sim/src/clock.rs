//! Clocks that differ between hosts: each clock runs fast or slow, and its rate changes.

use std::time::Duration;

use spillway_transport::Time;

use crate::rng::Rng;

/// The rate of an exact clock: one nanosecond per nanosecond of the world's time.
const EXACT_RATE: u64 = 1 << 20;
/// A rate differs from the exact one by at most 1/20 (5 %). Real clocks differ less.
const RATE_ERROR_ONE_IN: u64 = 20;
/// Maximum start value of a clock, one hour: machines boot at different times.
const AHEAD_NS_MAX: u64 = 3_600_000_000_000;
/// Maximum jump ahead, 50 ms: a virtual machine that was suspended resumes with such a jump.
const JUMP_NS_MAX: u64 = 50_000_000;

/// The clock that a host's programs read. It never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Time of the last change of the rate, in the world's time (`set_at`) and in the clock's (`set_to`).
    set_at: Time,
    set_to: Time,
    rate: u64,
}

impl Clock {
    /// Equals the world's time.
    pub const TRUE: Clock = Clock { set_at: Time::ZERO, set_to: Time::ZERO, rate: EXACT_RATE };

    /// A clock with a random start value and rate.
    pub fn draw(rng: &mut Rng) -> Clock {
        Clock { set_at: Time::ZERO, set_to: Time(rng.log_uniform(1, AHEAD_NS_MAX)), rate: rate(rng) }
    }

    /// The clock's time at `now` of the world.
    pub fn read(&self, now: Time) -> Time {
        let passed = u128::from(now.0.saturating_sub(self.set_at.0)) * u128::from(self.rate);
        Time(self.set_to.0 + (passed / u128::from(EXACT_RATE)) as u64) // fits: the rate is 1 ± 5 %
    }

    /// The earliest time of the world at which the clock shows `shown` or more.
    pub fn when(&self, shown: Time) -> Time {
        let needed = u128::from(shown.0.saturating_sub(self.set_to.0)) * u128::from(EXACT_RATE);
        let passed = needed.div_ceil(u128::from(self.rate));
        Time(self.set_at.0.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX)))
    }

    /// Changes the rate at `now`; with probability 1/3 the clock also jumps ahead.
    pub fn drift(&mut self, rng: &mut Rng, now: Time) {
        let jump = if rng.chance(1, 3) { rng.log_uniform(1_000, JUMP_NS_MAX) } else { 0 };
        let set_to = self.read(now) + Duration::from_nanos(jump);
        *self = Clock { set_at: now, set_to, rate: rate(rng) };
    }
}

fn rate(rng: &mut Rng) -> u64 {
    rng.range(EXACT_RATE - EXACT_RATE / RATE_ERROR_ONE_IN, EXACT_RATE + EXACT_RATE / RATE_ERROR_ONE_IN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_never_go_back_and_timers_never_expire_early() {
        let mut rng = Rng::new(5);
        for _ in 0..100 {
            let mut clock = Clock::draw(&mut rng);
            let (mut now, mut shown) = (Time(1), clock.read(Time(1)));
            for _ in 0..100 {
                now = now + Duration::from_nanos(rng.log_uniform(1, 1_000_000_000_000));
                assert!(clock.read(now) >= shown);
                shown = clock.read(now);
                let timer = shown + Duration::from_nanos(rng.log_uniform(1, 1_000_000_000_000));
                let due = clock.when(timer);
                assert!(clock.read(due) >= timer && clock.read(Time(due.0 - 2)) < timer);
                if rng.chance(1, 5) {
                    clock.drift(&mut rng, now);
                }
            }
        }
    }

    #[test]
    fn clock_rates_differ_from_the_exact_rate_by_at_most_five_percent() {
        let mut rng = Rng::new(6);
        for _ in 0..100 {
            let clock = Clock::draw(&mut rng);
            let passed = clock.read(Time(100_000_000)) - clock.read(Time::ZERO);
            assert!((95_000_000..=105_000_000).contains(&passed.as_nanos()), "{passed:?}");
        }
    }

    #[test]
    fn true_clock_equals_the_worlds_time() {
        assert_eq!((Clock::TRUE.read(Time(77)), Clock::TRUE.when(Time(77))), (Time(77), Time(77)));
    }
}
