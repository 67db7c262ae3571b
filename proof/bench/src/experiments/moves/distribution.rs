//! The distribution of a round's values.

/// Quantiles of a round. NaN without values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Distribution {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl Distribution {
    pub(super) fn of(mut values: Vec<f64>) -> Distribution {
        values.sort_unstable_by(f64::total_cmp);
        let at = |permille: usize| {
            let rank = (values.len() * permille).div_ceil(1000).max(1);
            values.get(rank - 1).copied().unwrap_or(f64::NAN)
        };
        Distribution { p50: at(500), p99: at(990), max: at(1000) }
    }

    /// The quantiles with their names.
    pub(super) fn named(&self) -> [(&'static str, f64); 3] {
        [("p50", self.p50), ("p99", self.p99), ("max", self.max)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_of_the_round() {
        let all = Distribution::of((1..=200).rev().map(f64::from).collect());
        assert_eq!(all, Distribution { p50: 100.0, p99: 198.0, max: 200.0 });
        assert_eq!(Distribution::of(vec![7.0]), Distribution { p50: 7.0, p99: 7.0, max: 7.0 });
        assert!(Distribution::of(Vec::new()).p50.is_nan());
    }
}
