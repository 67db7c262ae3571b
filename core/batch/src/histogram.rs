/// Maximum number of buckets with an upper bound. One more bucket counts the values beyond the last bound.
const BOUNDS_MAX: usize = 16;

/// A histogram with fixed bounds: 160 bytes, at most 16 comparisons for each value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    bounds: &'static [u64],
    counts: [u64; BOUNDS_MAX + 1],
    sum: u64,
}

impl Histogram {
    /// An empty histogram. `bounds` must be in ascending order; bounds after the sixteenth are ignored.
    pub const fn new(bounds: &'static [u64]) -> Histogram {
        let bounds = if bounds.len() > BOUNDS_MAX { bounds.split_at(BOUNDS_MAX).0 } else { bounds };
        Histogram { bounds, counts: [0; BOUNDS_MAX + 1], sum: 0 }
    }

    /// Counts a value.
    pub fn record(&mut self, value: u64) {
        let bucket = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        self.counts[bucket] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// Adds the counts of another histogram with the same bounds.
    pub fn add(&mut self, other: &Histogram) {
        debug_assert_eq!(self.bounds, other.bounds, "histograms to add should have the same bounds");
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Upper bounds of the buckets, inclusive.
    pub fn bounds(&self) -> &'static [u64] {
        self.bounds
    }

    /// Number of values in each bucket; the last bucket counts those beyond all bounds.
    pub fn counts(&self) -> &[u64] {
        &self.counts[..=self.bounds.len()]
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum
    }
}

/// Distributions of a link's batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    /// Data messages in each batch; 0 for a batch with control messages only.
    pub messages: Histogram,
    /// Bytes of each batch.
    pub bytes: Histogram,
    /// Delay added by batching, from the turn of a batch's first message until the batch was taken, in nanoseconds.
    pub delay_ns: Histogram,
}

const MESSAGES: &[u64] = &[0, 1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300, 500, 1000];
const BYTES: &[u64] = &[
    64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576,
    4_194_304,
];
const DELAY_NS: &[u64] = &[
    5_000,
    10_000,
    20_000,
    50_000,
    75_000,
    100_000,
    150_000,
    200_000,
    300_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
];

impl Default for Batches {
    fn default() -> Batches {
        Batches {
            messages: Histogram::new(MESSAGES),
            bytes: Histogram::new(BYTES),
            delay_ns: Histogram::new(DELAY_NS),
        }
    }
}

impl Batches {
    /// Adds the distributions of another link.
    pub fn add(&mut self, other: &Batches) {
        self.messages.add(&other.messages);
        self.bytes.add(&other.bytes);
        self.delay_ns.add(&other.delay_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_up_to_and_beyond_the_bounds() {
        let mut histogram = Histogram::new(&[1, 10]);
        for value in [0, 1, 2, 10, 11, u64::MAX] {
            histogram.record(value);
        }
        assert_eq!(histogram.counts(), [2, 2, 2]);
        assert_eq!((histogram.count(), histogram.sum()), (6, u64::MAX), "the sum should not overflow");
        let mut twice = histogram;
        twice.add(&histogram);
        assert_eq!(twice.counts(), [4, 4, 4]);
    }

    #[test]
    fn bounds_are_ascending_and_at_most_sixteen() {
        let batches = Batches::default();
        for (bounds, histogram) in
            [(MESSAGES, batches.messages), (BYTES, batches.bytes), (DELAY_NS, batches.delay_ns)]
        {
            assert_eq!(bounds, histogram.bounds());
            assert!(bounds.is_sorted_by(|a, b| a < b), "bounds should ascend");
        }
    }
}
