//! Latencies of direct and of helped replies: recent ones, and all since the start.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Recent latencies are those of the current and the previous window of this length.
const WINDOW: Duration = Duration::from_secs(10);
/// Maximum recorded latency; slower replies are recorded with this value.
const LATENCY_MAX_US: u64 = 60_000_000;
/// Upper bounds of the buckets of [`Total`], in microseconds.
pub(crate) const BOUNDS_US: [u64; 16] = [
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000, 5_000_000,
];

/// Replies since the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Total {
    /// Replies in each bucket of [`BOUNDS_US`]; the last bucket holds those above all bounds.
    pub counts: [u64; BOUNDS_US.len() + 1],
    pub sum_us: u64,
}

#[derive(Debug)]
struct Replies {
    current: Histogram<u64>,
    previous: Histogram<u64>,
    total: Total,
}

impl Replies {
    fn new() -> Replies {
        Replies { current: histogram(), previous: histogram(), total: Total::default() }
    }

    fn rotate(&mut self) {
        std::mem::swap(&mut self.current, &mut self.previous);
        self.current.reset();
    }
}

pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_US, 2)
        .expect("LATENCY_MAX_US is at least twice the lower bound")
}

#[derive(Debug)]
struct Inner {
    window_began: Instant,
    direct: Replies,
    helped: Replies,
}

impl Inner {
    /// Begins a new window if the current one is over.
    fn rotate(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.window_began);
        if passed < WINDOW {
            return;
        }
        let rotations = if passed < 2 * WINDOW { 1 } else { 2 };
        for _ in 0..rotations {
            self.direct.rotate();
            self.helped.rotate();
        }
        self.window_began = now;
    }
}

/// The latencies of one network thread. Other threads may read them.
#[derive(Debug)]
pub(crate) struct Latencies(Mutex<Inner>);

impl Latencies {
    pub fn new(now: Instant) -> Latencies {
        Latencies(Mutex::new(Inner { window_began: now, direct: Replies::new(), helped: Replies::new() }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn record(&self, now: Instant, latency: Duration, is_helped: bool) {
        let mut inner = self.inner();
        inner.rotate(now);
        let replies = if is_helped { &mut inner.helped } else { &mut inner.direct };
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        replies.current.saturating_record(us.max(1));
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        replies.total.counts[bucket] += 1;
        replies.total.sum_us = replies.total.sum_us.saturating_add(us);
    }

    /// Adds the recent direct and helped replies to `sums`, in this order.
    pub fn add_recent(&self, now: Instant, sums: [&mut Histogram<u64>; 2]) {
        let mut inner = self.inner();
        inner.rotate(now);
        for (replies, sum) in [&inner.direct, &inner.helped].into_iter().zip(sums) {
            // Cannot fail: all histograms have the same bounds.
            let _ = sum.add(&replies.current);
            let _ = sum.add(&replies.previous);
        }
    }

    /// Adds the direct and helped replies since the start to `sums`, in this order.
    pub fn add_totals(&self, sums: [&mut Total; 2]) {
        let inner = self.inner();
        for (replies, sum) in [&inner.direct, &inner.helped].into_iter().zip(sums) {
            sum.sum_us += replies.total.sum_us;
            sum.counts.iter_mut().zip(&replies.total.counts).for_each(|(sum, more)| *sum += more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_latencies_expire_and_totals_do_not() {
        let start = Instant::now();
        let latencies = Latencies::new(start);
        let read = |at: Duration| {
            let (mut direct, mut helped) = (histogram(), histogram());
            let (mut all_direct, mut all_helped) = (Total::default(), Total::default());
            latencies.add_recent(start + at, [&mut direct, &mut helped]);
            latencies.add_totals([&mut all_direct, &mut all_helped]);
            (direct.len(), helped.len(), all_direct.counts.iter().sum::<u64>(), all_helped.sum_us)
        };
        latencies.record(start, Duration::from_micros(100), false);
        latencies.record(start, Duration::from_secs(100), true);
        assert_eq!(read(Duration::ZERO), (1, 1, 1, 100_000_000));
        assert_eq!(read(WINDOW), (1, 1, 1, 100_000_000), "the previous window should still count");
        assert_eq!(read(2 * WINDOW), (0, 0, 1, 100_000_000));
        latencies.record(start + 2 * WINDOW, Duration::from_nanos(1), false);
        assert_eq!(read(5 * WINDOW), (0, 0, 2, 100_000_000), "both windows should have expired");
    }
}
