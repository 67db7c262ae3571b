//! Limits the rate of notices.

use std::time::Duration;

use spillway_transport::Time;

/// Counts occurrences and allows one report per second.
#[derive(Debug, Default)]
pub struct Limiter {
    occurred: u64,
    reported: Option<Time>,
}

impl Limiter {
    const INTERVAL: Duration = Duration::from_secs(1);

    /// Counts an occurrence. Returns the number since the last report if another report is due.
    pub fn count(&mut self, now: Time) -> Option<u64> {
        self.occurred += 1;
        if self.reported.is_some_and(|last| now.since(last) < Limiter::INTERVAL) {
            return None;
        }
        self.reported = Some(now);
        Some(std::mem::take(&mut self.occurred))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_once_a_second_and_loses_no_count() {
        let mut limiter = Limiter::default();
        let at = |millis| Time::ZERO + Duration::from_millis(millis);
        assert_eq!(limiter.count(at(0)), Some(1));
        assert_eq!(limiter.count(at(1)), None);
        assert_eq!(limiter.count(at(999)), None);
        assert_eq!(limiter.count(at(1000)), Some(3));
    }
}
