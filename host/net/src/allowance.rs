//! A bound on a rate that permits short bursts.

use spillway_transport::Time;

/// Permits a number of events each second, and up to a number of them at once after a quiet time (a token bucket).
#[derive(Debug)]
pub struct Allowance {
    per_second: f64,
    burst: f64,
    /// Events that are permitted, as of `updated_at`.
    events: f64,
    updated_at: Time,
}

impl Allowance {
    /// Permits `burst` events at first.
    pub fn new(per_second: f64, burst: f64) -> Allowance {
        Allowance { per_second, burst, events: burst, updated_at: Time::ZERO }
    }

    /// Returns the number of events that are permitted now.
    pub(crate) fn update(&mut self, now: Time) -> u32 {
        let earned = now.since(self.updated_at).as_secs_f64() * self.per_second;
        self.events = (self.events + earned).min(self.burst);
        self.updated_at = now;
        self.events as u32
    }

    /// Counts events, at most as many as [`update`](Self::update) has returned.
    pub(crate) fn use_up(&mut self, events: u32) {
        self.events -= f64::from(events);
    }

    /// Whether one more event is permitted; counts the event if so.
    pub fn take(&mut self, now: Time) -> bool {
        let is_permitted = self.update(now) > 0;
        self.use_up(u32::from(is_permitted));
        is_permitted
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_is_permitted_and_then_the_rate() {
        let mut allowance = Allowance::new(100.0, 5.0);
        let mut taken = |at_ms| {
            let now = Time::ZERO + Duration::from_millis(at_ms);
            (0..20).filter(|_| allowance.take(now)).count()
        };
        assert_eq!([taken(0), taken(0), taken(20), taken(1000)], [5, 0, 2, 5]);
    }
}
