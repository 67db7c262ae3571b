//! Distributions in a helper's status.

use serde::{Deserialize, Serialize};
use spillway_batch::Histogram;

/// Counts of values in buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    /// Upper bounds of the buckets, inclusive.
    pub bounds: Vec<u64>,
    /// Number of values in each bucket; the last one is for values beyond all bounds.
    pub counts: Vec<u64>,
    /// Sum of all values.
    pub sum: u64,
}

impl Distribution {
    /// Adds a histogram, whose values are divided by `unit`.
    pub(crate) fn add(&mut self, histogram: &Histogram, unit: u64) {
        if self.bounds.is_empty() {
            self.bounds = histogram.bounds().iter().map(|bound| bound / unit).collect();
            self.counts = vec![0; self.bounds.len() + 1];
        }
        self.counts.iter_mut().zip(histogram.counts()).for_each(|(count, more)| *count += more);
        self.sum += histogram.sum() / unit;
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The values added since the snapshot `before`; all values if its buckets differ.
    pub fn since(&self, before: &Distribution) -> Distribution {
        if before.bounds != self.bounds || before.counts.len() != self.counts.len() {
            return self.clone();
        }
        let counts = self.counts.iter().zip(&before.counts).map(|(now, then)| now.saturating_sub(*then));
        Distribution {
            bounds: self.bounds.clone(),
            counts: counts.collect(),
            sum: self.sum.saturating_sub(before.sum),
        }
    }

    /// The value below which `share` (0 to 1) of all values lie, interpolated in its bucket. `None` without values.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let total = self.count();
        if total == 0 {
            return None;
        }
        let (rank, mut below) = (share * total as f64, 0.0);
        for (index, count) in self.counts.iter().enumerate() {
            let count = *count as f64;
            if count > 0.0 && below + count >= rank {
                let bound = |index: usize| self.bounds.get(index).map(|bound| *bound as f64);
                let lower = index.checked_sub(1).and_then(bound).unwrap_or(0.0);
                let upper = bound(index).unwrap_or(lower);
                return Some(lower + (upper - lower) * ((rank - below) / count).clamp(0.0, 1.0));
            }
            below += count;
        }
        self.bounds.last().map(|bound| *bound as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_interpolated_within_their_bucket() {
        let distribution =
            |counts: &[u64]| Distribution { bounds: vec![10, 20, 40], counts: counts.to_vec(), sum: 0 };
        assert_eq!(distribution(&[0, 0, 0, 0]).quantile(0.5), None);
        assert_eq!(distribution(&[0, 10, 0, 0]).quantile(0.5), Some(15.0));
        assert_eq!(distribution(&[50, 49, 0, 1]).quantile(0.99), Some(20.0));
        assert_eq!(
            distribution(&[0, 0, 0, 3]).quantile(0.5),
            Some(40.0),
            "values beyond the last bound should count as the bound"
        );
        assert_eq!(Distribution::default().quantile(0.5), None);
    }

    #[test]
    fn since_subtracts_the_counts_of_a_snapshot() {
        let distribution =
            |counts: &[u64], sum| Distribution { bounds: vec![1], counts: counts.to_vec(), sum };
        assert_eq!(distribution(&[5, 7], 30).since(&distribution(&[2, 7], 10)), distribution(&[3, 0], 20));
        assert_eq!(
            distribution(&[1, 0], 3).since(&distribution(&[2, 7], 10)),
            distribution(&[0, 0], 0),
            "counts of a restarted helper should not become negative"
        );
        assert_eq!(distribution(&[5, 7], 30).since(&Distribution::default()), distribution(&[5, 7], 30));
    }

    #[test]
    fn add_converts_histograms_to_the_unit() {
        let mut histogram = Histogram::new(&[1_000, 5_000]);
        [500, 3_000, 9_000].into_iter().for_each(|value| histogram.record(value));
        let mut distribution = Distribution::default();
        distribution.add(&histogram, 1_000);
        distribution.add(&histogram, 1_000);
        assert_eq!(
            (distribution.bounds, distribution.counts, distribution.sum),
            (vec![1, 5], vec![2, 2, 2], 24)
        );
    }
}
