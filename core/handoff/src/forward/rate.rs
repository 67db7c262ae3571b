//! A bound on events per second.

use spillway_transport::Time;

const NS_PER_S: u64 = 1_000_000_000;

/// Allows a burst of `per_s` events, and on average `per_s` events a second.
#[derive(Clone, Debug)]
pub(crate) struct Rate {
    per_s: u32,
    /// The part of a second that the events until `at` have used up.
    used_ns: u64,
    at: Time,
}

impl Rate {
    pub(crate) fn new(now: Time, per_s: u32) -> Rate {
        Rate { per_s, used_ns: 0, at: now }
    }

    /// Counts an event. Returns false if the event exceeds the rate.
    pub(crate) fn take(&mut self, now: Time) -> bool {
        let passed_ns = now.0.saturating_sub(self.at.0);
        (self.used_ns, self.at) = (self.used_ns.saturating_sub(passed_ns), self.at.max(now));
        let Some(event_ns) = NS_PER_S.checked_div(self.per_s.into()) else { return false };
        let is_allowed = self.used_ns + event_ns <= NS_PER_S;
        if is_allowed {
            self.used_ns += event_ns;
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    fn taken(rate: &mut Rate, now: Time) -> usize {
        (0..1_000).filter(|_| rate.take(now)).count()
    }

    #[test]
    fn a_second_has_as_many_events_as_allowed() {
        let start = Time(7_000_000_000);
        let mut rate = Rate::new(start, 100);
        assert_eq!(taken(&mut rate, start), 100);
        assert_eq!(taken(&mut rate, start + Duration::from_millis(100)), 10);
        assert_eq!(taken(&mut rate, start + Duration::from_secs(50)), 100, "unused events are lost");
        assert_eq!(taken(&mut Rate::new(start, 0), start), 0);
    }
}
