//! How long to wait before the next attempt.

use std::time::Duration;

/// Doubles with each failure up to a bound, and is spread, so that many who failed together do not come together.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest, next: first }
    }

    pub(crate) fn succeeded(&mut self) {
        self.next = self.first;
    }

    pub(crate) fn failed(&mut self) -> Duration {
        let now = self.next;
        self.next = (now * 2).min(self.longest);
        spread(now)
    }
}

/// Three to five quarters of it.
pub(crate) fn spread(time: Duration) -> Duration {
    let mut bytes = [0; 2];
    // Without randomness it is just not spread.
    let _ = getrandom::fill(&mut bytes);
    let part = u32::from(u16::from_ne_bytes(bytes) % 512);
    time / 4 * 3 + time / 1024 * part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_a_bound_and_starts_again() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(400));
        let near = |time: Duration, millis: u64| {
            time >= Duration::from_millis(millis) / 4 * 3 && time <= Duration::from_millis(millis) / 4 * 5
        };
        for millis in [100, 200, 400, 400] {
            assert!(near(backoff.failed(), millis), "{millis}");
        }
        backoff.succeeded();
        assert!(near(backoff.failed(), 100));
    }
}
