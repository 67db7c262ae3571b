//! When a socket that has moved is looked at again, and when it may end.

use std::time::{Duration, Instant};

/// Shortest time between the filter and the end of the socket. Segments that were on their way when the switch began to hold
/// the flow, or on another CPU when the filter was attached, meet a socket until then, and not a reset.
pub const GRACE: Duration = Duration::from_millis(20);
/// Times of the grace at which late bytes are looked for and repeated, before its end. The peer waits for the answer to these
/// bytes, and a thread that was interrupted between the filter and the socket's queue usually continues soon.
const CHECKS_MS: [u64; 5] = [1, 2, 4, 8, 14];

/// The checks of a socket that has moved. The last one is at the end of the grace.
#[derive(Debug)]
pub(crate) struct Grace {
    start: Instant,
    /// The time since the start of the check that was made last.
    checked: Duration,
}

impl Grace {
    pub(crate) fn new(start: Instant) -> Grace {
        Grace { start, checked: Duration::ZERO }
    }

    /// Whether the time of a check has come that was not made yet. It counts as made from now on, like those before it.
    pub(crate) fn is_check_due(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.start);
        let latest = checks().take_while(|check| *check <= elapsed).last().unwrap_or_default();
        let is_due = latest > self.checked;
        self.checked = self.checked.max(latest);
        is_due
    }

    /// The time of the next check. `None`: the grace is over.
    pub(crate) fn next_check(&self) -> Option<Instant> {
        checks().find(|check| *check > self.checked).map(|check| self.start + check)
    }
}

fn checks() -> impl Iterator<Item = Duration> {
    CHECKS_MS.map(Duration::from_millis).into_iter().chain([GRACE])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_become_rarer_and_the_last_one_is_the_end() {
        let start = Instant::now();
        let mut grace = Grace::new(start);
        assert!(!grace.is_check_due(start));
        let (mut at, mut pause, mut checks) = (start, Duration::ZERO, 0);
        while let Some(next) = grace.next_check() {
            assert!(next - at >= pause, "checks become rarer");
            assert!(!grace.is_check_due(next - Duration::from_micros(1)));
            assert!(grace.is_check_due(next));
            assert!(!grace.is_check_due(next), "a check is made once");
            (at, pause, checks) = (next, next - at, checks + 1);
        }
        assert_eq!((at - start, checks), (GRACE, CHECKS_MS.len() + 1));
    }

    #[test]
    fn checks_that_were_missed_are_made_as_one() {
        let start = Instant::now();
        let mut grace = Grace::new(start);
        assert!(grace.is_check_due(start + Duration::from_millis(5)));
        assert_eq!(grace.next_check(), Some(start + Duration::from_millis(8)));
        assert!(grace.is_check_due(start + GRACE * 3));
        assert_eq!(grace.next_check(), None);
    }
}
