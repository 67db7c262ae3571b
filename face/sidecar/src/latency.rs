//! Latencies of direct and of helped replies: of the last seconds, and since the start.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Recent figures cover the last one to two windows.
const WINDOW: Duration = Duration::from_secs(10);
/// Slower replies are recorded with this latency.
const LATENCY_MAX_US: u64 = 60_000_000;
/// Upper bounds of the buckets since the start, in microseconds.
pub(crate) const BOUNDS_US: [u64; 16] = [
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000, 5_000_000,
];

#[derive(Clone, Debug, Default)]
pub(crate) struct Total {
    /// Replies in each bucket of [`BOUNDS_US`]; the last bucket holds those above all bounds.
    pub counts: [u64; BOUNDS_US.len() + 1],
    pub sum_us: u64,
}

#[derive(Debug)]
struct Kind {
    now: Histogram<u64>,
    before: Histogram<u64>,
    total: Total,
}

impl Kind {
    fn new() -> Kind {
        Kind { now: histogram(), before: histogram(), total: Total::default() }
    }

    fn turn(&mut self) {
        std::mem::swap(&mut self.now, &mut self.before);
        self.now.reset();
    }
}

pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_US, 2).expect("the bounds are in order")
}

#[derive(Debug)]
struct Inner {
    window_began: Instant,
    direct: Kind,
    helped: Kind,
}

impl Inner {
    fn turn(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.window_began);
        if passed < WINDOW {
            return;
        }
        let both = if passed < 2 * WINDOW { 1 } else { 2 };
        for _ in 0..both {
            self.direct.turn();
            self.helped.turn();
        }
        self.window_began = now;
    }
}

/// The latencies of one network thread; a lock shares them with readers.
#[derive(Debug)]
pub(crate) struct Latencies(Mutex<Inner>);

impl Latencies {
    pub fn new(now: Instant) -> Latencies {
        Latencies(Mutex::new(Inner { window_began: now, direct: Kind::new(), helped: Kind::new() }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn record(&self, now: Instant, latency: Duration, is_helped: bool) {
        let mut inner = self.inner();
        inner.turn(now);
        let kind = if is_helped { &mut inner.helped } else { &mut inner.direct };
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        kind.now.saturating_record(us.max(1));
        let place = BOUNDS_US.partition_point(|bound| *bound < us);
        kind.total.counts[place] += 1;
        kind.total.sum_us = kind.total.sum_us.saturating_add(us);
    }

    /// Adds the recent direct and helped replies to `sums`, in this order.
    pub fn add_recent(&self, now: Instant, sums: [&mut Histogram<u64>; 2]) {
        let mut inner = self.inner();
        inner.turn(now);
        for (kind, sum) in [&inner.direct, &inner.helped].into_iter().zip(sums) {
            // Cannot fail: all histograms have the same bounds.
            let _ = sum.add(&kind.now);
            let _ = sum.add(&kind.before);
        }
    }

    /// Adds the direct and helped replies since the start to `sums`, in this order.
    pub fn add_totals(&self, sums: [&mut Total; 2]) {
        let inner = self.inner();
        for (kind, sum) in [&inner.direct, &inner.helped].into_iter().zip(sums) {
            sum.sum_us += kind.total.sum_us;
            sum.counts.iter_mut().zip(&kind.total.counts).for_each(|(sum, more)| *sum += more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_replies_expire_and_totals_stay() {
        let start = Instant::now();
        let latencies = Latencies::new(start);
        let seen = |at: Duration| {
            let (mut direct, mut helped) = (histogram(), histogram());
            let (mut all_direct, mut all_helped) = (Total::default(), Total::default());
            latencies.add_recent(start + at, [&mut direct, &mut helped]);
            latencies.add_totals([&mut all_direct, &mut all_helped]);
            (direct.len(), helped.len(), all_direct.counts.iter().sum::<u64>(), all_helped.sum_us)
        };
        latencies.record(start, Duration::from_micros(100), false);
        latencies.record(start, Duration::from_secs(100), true);
        assert_eq!(seen(Duration::ZERO), (1, 1, 1, 100_000_000));
        assert_eq!(seen(WINDOW), (1, 1, 1, 100_000_000), "the previous window still counts");
        assert_eq!(seen(2 * WINDOW), (0, 0, 1, 100_000_000));
        latencies.record(start + 2 * WINDOW, Duration::from_nanos(1), false);
        assert_eq!(seen(5 * WINDOW), (0, 0, 2, 100_000_000), "both windows have expired");
    }
}
