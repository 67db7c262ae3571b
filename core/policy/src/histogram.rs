//! Latencies in log-linear buckets, in fixed memory of 1.5 KB.

use core::time::Duration;

/// Buckets of 1 µs up to this value, then this number of buckets for each doubling, at most 1/16 of their values wide.
const LINEAR: usize = 16;
const LINEAR_BITS: u32 = LINEAR.ilog2();
/// The last doubling ends at 2^26 µs (67 s); longer latencies count in the last bucket.
const DOUBLINGS: usize = 22;
pub(crate) const BUCKETS: usize = LINEAR * (DOUBLINGS + 1);

/// Counts latencies. Quantiles are accurate to 7 % or 1 µs, whichever is more.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: [u32; BUCKETS],
    count: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; BUCKETS], count: 0 }
    }
}

/// The index of a latency's bucket.
pub(crate) fn bucket(latency: Duration) -> usize {
    let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).min((1 << 26) - 1);
    let doublings = (us.max(1).ilog2() + 1).saturating_sub(LINEAR_BITS + 1);
    let within = us >> doublings; // below 32; at least 16 beyond the linear part
    (doublings as usize * LINEAR) + within as usize
}

fn lowest_us(bucket: usize) -> u64 {
    let doublings = (bucket / LINEAR).saturating_sub(1);
    ((bucket - doublings * LINEAR) as u64) << doublings
}

impl Histogram {
    /// Counts one latency.
    pub fn record(&mut self, latency: Duration) {
        self.add(bucket(latency), 1);
    }

    pub(crate) fn add(&mut self, bucket: usize, added: u32) {
        self.counts[bucket] = self.counts[bucket].saturating_add(added);
        self.count += u64::from(added);
    }

    /// Subtracts counts that were added before.
    pub(crate) fn subtract(&mut self, counts: &[u32; BUCKETS]) {
        for (count, subtracted) in self.counts.iter_mut().zip(counts) {
            self.count -= u64::from((*count).min(*subtracted));
            *count = count.saturating_sub(*subtracted);
        }
    }

    /// The number of latencies counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The latency that `permille` of a thousand do not exceed, interpolated linearly within a bucket. `None` without
    /// samples.
    pub fn quantile(&self, permille: u32) -> Option<Duration> {
        let rank = (self.count * u64::from(permille.min(1000))).div_ceil(1000).max(1);
        let mut below = 0;
        for (bucket, count) in self.counts.iter().map(|count| u64::from(*count)).enumerate() {
            if below + count >= rank && count > 0 {
                let (low, high) = (lowest_us(bucket), lowest_us(bucket + 1));
                let ns = low * 1000 + (high - low) * 1000 * (rank - below) / count;
                return Some(Duration::from_nanos(ns));
            }
            below += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_without_gaps_and_narrow() {
        for us in (0..100_000).chain((100_000..80_000_000).step_by(997)) {
            let found = bucket(Duration::from_micros(us));
            assert!(found < BUCKETS, "each time should have a bucket");
            let (low, high) = (lowest_us(found), lowest_us(found + 1));
            assert!(
                low <= us.min((1 << 26) - 1) && us.min((1 << 26) - 1) < high,
                "{us} should be in its bucket, {low} to {high}"
            );
            assert!(
                high - low == 1 || (high - low) * 16 <= low,
                "the bucket of {us} should be at most 1/16 of its lower end wide: {low} to {high}"
            );
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_accurate_to_7_percent() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(990), None);
        for us in 1..=10_000 {
            histogram.record(Duration::from_micros(us));
        }
        for permille in [1, 10, 500, 900, 990, 999, 1000] {
            let exact = f64::from(permille) * 10.0;
            let found = histogram.quantile(permille).unwrap().as_nanos() as f64 / 1000.0;
            // A bucket is at most 1/16 of its lower end wide, 6.25 %.
            assert!(
                (found - exact).abs() <= exact * 0.07 + 1.0,
                "quantile {permille} should be about {exact} us, not {found}"
            );
        }
    }
}
