//! PostMan's Algorithm 1: a batch leaves when it has *S* bytes, or *T* after the previous batch. *S* and *T*
//! follow *s*, the bytes of the last batch, and *t*, the time between the last two batches.

use core::time::Duration;

use super::{Policy, SentBatch};

/// Lower bound of *S*: the usual MTU (PostMan §4.3).
const SIZE_FLOOR_BYTES: usize = 1500;
/// Lower bound of *T* (Algorithm 1, line 9).
const INTERVAL_FLOOR: Duration = Duration::from_micros(10);

/// Algorithm 1 as published, for comparison. After an idle time, *T* equals that time, and the next messages wait as
/// long.
#[derive(Clone, Debug)]
pub struct Algorithm1 {
    size: usize,
    interval: Duration,
}

impl Algorithm1 {
    /// Starts at both floors.
    pub fn new() -> Algorithm1 {
        Algorithm1 { size: SIZE_FLOOR_BYTES, interval: INTERVAL_FLOOR }
    }
}

impl Default for Algorithm1 {
    fn default() -> Algorithm1 {
        Algorithm1::new()
    }
}

impl Policy for Algorithm1 {
    fn size_bytes(&self) -> usize {
        self.size
    }

    fn interval(&self) -> Duration {
        self.interval
    }

    fn sent(&mut self, SentBatch { bytes: size, elapsed, .. }: SentBatch) {
        let Some(elapsed) = elapsed else { return };
        // In integers: s < 0.75 S is 4 s < 3 S, and so on.
        let (s, big_s) = (size as u128, self.size as u128);
        if (4 * s < 3 * big_s || 4 * s > 5 * big_s) && size >= SIZE_FLOOR_BYTES {
            self.size = size;
        }
        let (t, big_t) = (elapsed.as_nanos(), self.interval.as_nanos());
        if (2 * t < big_t || 2 * t > 3 * big_t) && elapsed >= INTERVAL_FLOOR {
            self.interval = elapsed;
        }
    }
}

/// Algorithm 1 with *T* and *S* capped: no message waits longer than `max_delay` for its batch.
#[derive(Clone, Debug)]
pub struct Adaptive {
    published: Algorithm1,
    max_delay: Duration,
    max_bytes: usize,
}

impl Adaptive {
    /// Upper bounds of *T* and *S*.
    pub fn new(max_delay: Duration, max_bytes: usize) -> Adaptive {
        Adaptive { published: Algorithm1::new(), max_delay, max_bytes }
    }
}

impl Policy for Adaptive {
    fn size_bytes(&self) -> usize {
        self.published.size_bytes().min(self.max_bytes)
    }

    fn interval(&self) -> Duration {
        self.published.interval().min(self.max_delay)
    }

    fn sent(&mut self, batch: SentBatch) {
        // `elapsed` is passed on without the cap: *T* grows only when *t* exceeds 1.5 *T*, so with a capped
        // *t* a *T* above two thirds of the cap would never grow. `bytes` is capped: an *S* from 0.8 of its
        // cap on does not grow.
        self.published.sent(SentBatch { bytes: batch.bytes.min(self.max_bytes), ..batch });
    }
}

#[cfg(test)]
mod tests {
    use spillway_transport::Time;

    use super::*;

    const fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// Each step is (s, t, S after it, T after it), computed by hand from the paper's lines 1 to 12.
    fn check(policy: &mut dyn Policy, steps: &[(usize, Duration, usize, Duration)]) {
        for (step, &(size, elapsed, size_after, interval_after)) in steps.iter().enumerate() {
            policy.sent(SentBatch { at: Time::ZERO, bytes: size, elapsed: Some(elapsed) });
            assert_eq!(
                (policy.size_bytes(), policy.interval()),
                (size_after, interval_after),
                "step {step} should have the size and interval of the paper's algorithm"
            );
        }
    }

    #[test]
    fn computes_s_and_t_as_published() {
        check(
            &mut Algorithm1::new(),
            &[
                (1875, us(15), 1500, us(10)), // exactly 1.25 S and 1.5 T: unchanged
                (1876, us(16), 1876, us(16)), // just above both
                (1407, us(8), 1876, us(16)),  // exactly 0.75 S; exactly 0.5 T: unchanged
                (1499, us(7), 1876, us(16)),  // below the floors: unchanged
                (8000, us(100), 8000, us(100)),
                (6000, us(50), 8000, us(100)), // exactly 0.75 S, 0.5 T: unchanged
                (5999, us(49), 5999, us(49)),
                (1500, us(10), 1500, us(10)), // exactly the floors: accepted
            ],
        );
    }

    #[test]
    fn the_published_algorithm_stalls_after_idle_time() {
        check(&mut Algorithm1::new(), &[(100, Duration::from_secs(3), 1500, Duration::from_secs(3))]);
    }

    #[test]
    fn the_capped_algorithm_does_not_stall() {
        check(
            &mut Adaptive::new(us(200), 65536),
            &[
                (100, Duration::from_secs(3), 1500, us(200)),
                (100_000, us(90), 65536, us(90)),
                (100, us(10), 65536, us(10)),
            ],
        );
    }

    #[test]
    fn the_capped_interval_reaches_its_cap() {
        check(
            &mut Adaptive::new(us(300), 65536),
            &[
                (100, us(250), 1500, us(250)),
                (100, us(376), 1500, us(300)),
                (100, us(305), 1500, us(300)),
                (100, us(300), 1500, us(300)),
            ],
        );
    }

    #[test]
    fn extreme_values_do_not_overflow() {
        check(
            &mut Algorithm1::new(),
            &[(usize::MAX, Duration::MAX, usize::MAX, Duration::MAX), (0, us(0), usize::MAX, Duration::MAX)],
        );
    }
}
