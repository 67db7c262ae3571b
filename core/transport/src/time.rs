//! Time of the core crates.

use core::ops::{Add, Sub};
use core::time::Duration;

/// Nanoseconds since the start of the program or the simulation. Monotonic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The start of the program or the simulation.
    pub const ZERO: Time = Time(0);

    /// Time passed since `earlier`; zero when `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Nanoseconds since the start.
    pub fn as_nanos(self) -> u64 {
        self.0
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    /// Saturates after 584 years.
    fn add(self, duration: Duration) -> Time {
        let seconds = duration.as_secs().saturating_mul(1_000_000_000);
        Time(self.0.saturating_add(seconds).saturating_add(u64::from(duration.subsec_nanos())))
    }
}

impl Sub<Time> for Time {
    type Output = Duration;

    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_differences_saturate() {
        assert_eq!(Time(5) - Time(9), Duration::ZERO);
        assert_eq!(Time(u64::MAX - 1) + Duration::from_secs(1), Time(u64::MAX));
        assert_eq!(Time(7) + Duration::MAX, Time(u64::MAX));
    }
}
