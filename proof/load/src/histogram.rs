//! A histogram of latencies: sorted pairs of value and count, which are small in JSON and merge exactly.

use serde::{Deserialize, Serialize};

/// A log-linear ("HDR") histogram that stores only the values that occurred: exact to 1 µs below 2,048 µs, and to 11
/// significant bits (0.1 %) above. Histograms merge without loss.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram {
    /// (value in µs, count): values strictly ascending, counts above 0.
    pairs: Vec<(u64, u64)>,
}

/// The value stored for `value_us`: the largest one of the same step, so that quantiles are never too low.
pub fn quantize(value_us: u64) -> u64 {
    let bits = u64::BITS - value_us.leading_zeros();
    let dropped_bits = bits.saturating_sub(11);
    value_us | ((1 << dropped_bits) - 1)
}

impl Histogram {
    /// Adds `count` values of `value_us` microseconds.
    pub fn record(&mut self, value_us: u64, count: u64) {
        if count == 0 {
            return;
        }
        let value_us = quantize(value_us);
        match self.pairs.last_mut() {
            Some(last) if last.0 == value_us => last.1 += count,
            Some(last) if last.0 > value_us => {
                match self.pairs.binary_search_by_key(&value_us, |pair| pair.0) {
                    Ok(index) => self.pairs[index].1 += count,
                    Err(index) => self.pairs.insert(index, (value_us, count)),
                }
            }
            _ => self.pairs.push((value_us, count)),
        }
    }

    /// Adds everything in `other`.
    pub fn merge(&mut self, other: &Histogram) {
        if self.pairs.is_empty() {
            self.pairs.clone_from(&other.pairs);
            return;
        }
        let mut merged = Vec::with_capacity(self.pairs.len() + other.pairs.len());
        let mut own_pairs = self.pairs.iter().copied().peekable();
        for &(value, count) in &other.pairs {
            while let Some(pair) = own_pairs.next_if(|pair| pair.0 < value) {
                merged.push(pair);
            }
            let own_count = own_pairs.next_if(|pair| pair.0 == value).map_or(0, |pair| pair.1);
            merged.push((value, count + own_count));
        }
        merged.extend(own_pairs);
        self.pairs = merged;
    }

    /// Number of recorded values.
    pub fn count(&self) -> u64 {
        self.pairs.iter().map(|pair| pair.1).sum()
    }

    /// Number of recorded values above `value_us`.
    pub fn count_above(&self, value_us: u64) -> u64 {
        self.pairs.iter().filter(|pair| pair.0 > value_us).map(|pair| pair.1).sum()
    }

    /// The smallest stored value in µs that at least the fraction `q` (0 to 1) of all values do not exceed; 0 if empty.
    pub fn quantile_us(&self, q: f64) -> u64 {
        self.quantile_of(q, self.count())
    }

    /// Like [`Histogram::quantile_us`] of `total` values; the unrecorded ones count as infinite: `u64::MAX` if the
    /// quantile is one of them. Unanswered requests count in percentiles this way.
    pub fn quantile_of(&self, q: f64, total: u64) -> u64 {
        if total == 0 {
            return 0;
        }
        let rank = ((q * total as f64).ceil() as u64).clamp(1, total);
        let mut counted = 0;
        for (value, count) in &self.pairs {
            counted += count;
            if counted >= rank {
                return *value;
            }
        }
        u64::MAX
    }

    /// The largest value in µs; 0 if empty.
    pub fn max_us(&self) -> u64 {
        self.pairs.last().map_or(0, |pair| pair.0)
    }

    /// The mean in µs; 0 if empty.
    pub fn mean_us(&self) -> f64 {
        let sum: f64 = self.pairs.iter().map(|pair| pair.0 as f64 * pair.1 as f64).sum();
        sum / (self.count().max(1) as f64)
    }

    /// The pairs of value in µs and count, values ascending.
    pub fn pairs(&self) -> &[(u64, u64)] {
        &self.pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn random_histogram(seed: u64, values: &mut Vec<u64>) -> Histogram {
        let (mut random, mut histogram) = (Random::new(seed, 0), Histogram::default());
        for _ in 0..5000 {
            let value = (50.0 / random.unit()) as u64;
            histogram.record(value, 1);
            values.push(value);
        }
        histogram
    }

    #[test]
    fn stored_values_are_exact_below_2048_and_within_a_thousandth_above() {
        for value in [0, 1, 999, 2047] {
            assert_eq!(quantize(value), value);
        }
        let mut random = Random::new(1, 1);
        for _ in 0..10_000 {
            let value = random.next_u64() >> (20 + random.below(40));
            let stored = quantize(value);
            let is_near = stored >= value && stored - value <= value / 1000;
            assert!(is_near, "{stored}, stored for {value}, should exceed it by at most a thousandth");
            assert_eq!(quantize(stored), stored);
        }
    }

    #[test]
    fn quantiles_of_a_merged_histogram_equal_those_of_a_sorted_list() {
        let mut values = Vec::new();
        let mut merged = random_histogram(1, &mut values);
        merged.merge(&random_histogram(2, &mut values));
        merged.merge(&Histogram::default());
        values.sort_unstable();
        assert_eq!(merged.count(), 10_000);
        assert!(merged.pairs().is_sorted_by(|a, b| a.0 < b.0));
        for q in [0.0001, 0.5, 0.99, 0.999, 0.9999, 1.0] {
            let index = ((q * 10_000f64).ceil() as usize).max(1) - 1;
            assert_eq!(merged.quantile_us(q), quantize(values[index]), "quantile {q}");
        }
        assert_eq!(merged.max_us(), quantize(values[9_999]));
    }

    #[test]
    fn the_order_of_merges_does_not_change_the_result() {
        let mut values = Vec::new();
        let parts: Vec<_> = (0..4).map(|seed| random_histogram(seed, &mut values)).collect();
        let (mut forward, mut backward) = (Histogram::default(), Histogram::default());
        parts.iter().for_each(|part| forward.merge(part));
        parts.iter().rev().for_each(|part| backward.merge(part));
        assert_eq!(forward, backward);
        let text = serde_json::to_string(&forward).unwrap();
        assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), forward);
    }

    #[test]
    fn unrecorded_values_of_a_total_count_as_infinite() {
        let mut histogram = Histogram::default();
        histogram.record(100, 98);
        assert_eq!(histogram.quantile_of(0.98, 100), 100);
        assert_eq!(histogram.quantile_of(0.99, 100), u64::MAX);
        assert_eq!(histogram.quantile_of(0.99, 98), 100);
        assert_eq!(Histogram::default().quantile_us(0.99), 0);
    }
}
