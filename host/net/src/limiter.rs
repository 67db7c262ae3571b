//! Limits the rate of notices.

use std::time::Duration;

use spillway_transport::Time;

/// Counts occurrences and allows one report per second.
#[derive(Debug, Default)]
pub struct Limiter {
    unreported: u64,
    reported_at: Option<Time>,
}

impl Limiter {
    const INTERVAL: Duration = Duration::from_secs(1);

    /// Counts an occurrence. Returns the number of occurrences since the last report if another report is due.
    pub fn count(&mut self, now: Time) -> Option<u64> {
        self.unreported += 1;
        if self.reported_at.is_some_and(|last| now.since(last) < Limiter::INTERVAL) {
            return None;
        }
        self.reported_at = Some(now);
        Some(std::mem::take(&mut self.unreported))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_a_second_apart_and_count_every_occurrence() {
        let mut limiter = Limiter::default();
        let at = |millis| Time::ZERO + Duration::from_millis(millis);
        assert_eq!(limiter.count(at(0)), Some(1));
        assert_eq!(limiter.count(at(1)), None);
        assert_eq!(limiter.count(at(999)), None);
        assert_eq!(limiter.count(at(1000)), Some(3));
    }
}
