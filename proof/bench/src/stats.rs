//! Medians, ranges and confidence bounds of repeated runs.

use serde::{Deserialize, Serialize};

/// Median and range of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle run, or the mean of the two middle ones.
    pub median: f64,
    /// The lowest run.
    pub min: f64,
    /// The highest run.
    pub max: f64,
    /// Number of runs.
    pub runs: usize,
}

impl Spread {
    /// The spread of all finite values; `None` without any.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let sorted = sorted(values);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Spread { median: middle(&sorted), min, max, runs: sorted.len() })
    }
}

/// The median of all finite values; `None` without any.
pub fn median(values: &[f64]) -> Option<f64> {
    Spread::of(values).map(|spread| spread.median)
}

/// Numerator divided by denominator for each round. Leaves out rounds that lack one of them, and rounds whose
/// denominator is not above 0.
pub fn paired_ratios(numerators: &[Option<f64>], denominators: &[Option<f64>]) -> Vec<f64> {
    numerators
        .iter()
        .zip(denominators)
        .filter_map(|(a, b)| Some(((*a)?, (*b)?)))
        .filter(|(_, b)| *b > 0.0)
        .map(|(a, b)| a / b)
        .collect()
}

/// An upper bound of the true median with a confidence of at least 95 % for any distribution: the smallest order
/// statistic that is above the median with this probability. `None` with fewer than five runs, because even the largest
/// of n runs is below the median in 1 of 2ⁿ cases.
pub fn upper95(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let count = sorted.len();
    // X(k), the k-th smallest run, is a bound if at most k - 1 of n runs are below the median: binomial with p = 1/2.
    let mut outcomes_at_k = 1.0;
    let mut outcomes_up_to_k = 0.0;
    let mut bound = None;
    for k in 1..=count {
        outcomes_up_to_k += outcomes_at_k;
        outcomes_at_k *= (count - k + 1) as f64 / k as f64;
        // Here `outcomes_up_to_k` is the number of outcomes, of 2ⁿ, with at most k - 1 runs below the median.
        if outcomes_up_to_k / 2f64.powi(i32::try_from(count).ok()?) >= 0.95 {
            bound = Some(sorted[k - 1]);
            break;
        }
    }
    bound
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[half] } else { (sorted[half - 1] + sorted[half]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_median_and_range_of_finite_values() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[f64::NAN]), None);
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0, runs: 3 }));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn the_bound_is_that_of_the_sign_test() {
        let runs = |n: u32| (1..=n).map(f64::from).collect::<Vec<_>>();
        // All of five runs are below the median in 1/32 of all cases, all of four in 1/16.
        assert_eq!(upper95(&runs(4)), None);
        assert_eq!(upper95(&runs(5)), Some(5.0));
        // From tables of the sign test: n = 8 leaves out the largest (9/256), n = 15 the four largest (576/32768).
        assert_eq!(upper95(&runs(7)), Some(7.0));
        assert_eq!(upper95(&runs(8)), Some(7.0));
        assert_eq!(upper95(&runs(15)), Some(12.0));
        assert_eq!(upper95(&[]), None);
    }

    #[test]
    fn the_bound_is_above_the_median_in_95_percent_of_trials() {
        let mut state = 7u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let trials = 4_000;
        let held = (0..trials)
            .filter(|_| {
                let runs: Vec<f64> = (0..9).map(|_| uniform().powi(3)).collect();
                upper95(&runs).is_some_and(|bound| bound >= 0.125)
            })
            .count();
        assert!(held as f64 >= 0.95 * f64::from(trials) * 0.99, "{held} of {trials}");
    }

    #[test]
    fn ratios_pair_values_of_the_same_round() {
        let ratios = paired_ratios(
            &[Some(10.0), None, Some(8.0), Some(1.0)],
            &[Some(2.0), Some(2.0), Some(4.0), Some(0.0)],
        );
        assert_eq!(ratios, [5.0, 2.0]);
    }
}
