//! Intended send times of the open loop, which do not depend on replies.

use crate::random::Random;

/// Distribution of the gaps between arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spacing {
    /// Exponential gaps: independent arrivals.
    Poisson,
    /// Equal gaps.
    Constant,
}

/// A seeded sequence of intended send times, in ns since time zero of the run.
#[derive(Clone, Debug)]
pub struct Arrivals {
    spacing: Spacing,
    random: Random,
    rate_per_s: f64,
    /// The next arrival, with fractions of a ns: rounded gaps would change high rates. Infinite at rate 0.
    next_ns: f64,
}

impl Arrivals {
    /// A sequence of `rate_per_s` arrivals a second, from time zero on.
    pub fn new(spacing: Spacing, rate_per_s: f64, random: Random) -> Arrivals {
        let mut arrivals = Arrivals { spacing, random, rate_per_s: 0.0, next_ns: f64::INFINITY };
        arrivals.set_rate(0, rate_per_s);
        arrivals
    }

    /// Changes the rate from `at_ns` on. Call it after all arrivals before `at_ns` were taken.
    pub fn set_rate(&mut self, at_ns: u64, rate_per_s: f64) {
        self.rate_per_s = rate_per_s.max(0.0);
        self.next_ns = at_ns as f64 + self.gap_ns();
    }

    /// The next arrival, or `None` at rate 0.
    pub fn peek(&self) -> Option<u64> {
        self.next_ns.is_finite().then_some(self.next_ns as u64)
    }

    /// Takes the next arrival if it comes before `end_ns`.
    pub fn take_before(&mut self, end_ns: u64) -> Option<u64> {
        let next = self.peek().filter(|&next| next < end_ns)?;
        self.next_ns += self.gap_ns();
        Some(next)
    }

    fn gap_ns(&mut self) -> f64 {
        let mean_ns = 1e9 / self.rate_per_s; // infinite at rate 0
        match self.spacing {
            Spacing::Constant => mean_ns,
            Spacing::Poisson if mean_ns.is_finite() => -self.random.unit().ln() * mean_ns,
            Spacing::Poisson => f64::INFINITY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn take_all(arrivals: &mut Arrivals, end_ns: u64) -> Vec<u64> {
        std::iter::from_fn(|| arrivals.take_before(end_ns)).collect()
    }

    #[test]
    fn equal_seeds_give_equal_times() {
        let times =
            |seed| take_all(&mut Arrivals::new(Spacing::Poisson, 1000.0, Random::new(seed, 2)), 5 * SECOND);
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
        assert!(times(1).is_sorted());
    }

    #[test]
    fn poisson_arrivals_have_the_mean_and_variance_of_the_distribution() {
        let times = take_all(&mut Arrivals::new(Spacing::Poisson, 10_000.0, Random::new(5, 2)), 20 * SECOND);
        let mut per_10ms = vec![0f64; 2000];
        for time in &times {
            per_10ms[(time / 10_000_000) as usize] += 1.0;
        }
        let mean = per_10ms.iter().sum::<f64>() / 2000.0;
        let variance = per_10ms.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / 2000.0;
        assert!((mean - 100.0).abs() < 1.5, "10 ms should have 100 arrivals on average, not {mean}");
        assert!((variance / mean - 1.0).abs() < 0.2, "variance / mean should be 1, not {}", variance / mean);
    }

    #[test]
    fn rate_changes_at_the_given_time_and_rate_zero_ends_arrivals() {
        let mut arrivals = Arrivals::new(Spacing::Constant, 100.0, Random::new(1, 1));
        assert_eq!(take_all(&mut arrivals, SECOND).len(), 99);
        arrivals.set_rate(SECOND, 1000.0);
        assert_eq!(arrivals.peek(), Some(SECOND + 1_000_000));
        assert_eq!(take_all(&mut arrivals, 2 * SECOND).len(), 999);
        arrivals.set_rate(2 * SECOND, 0.0);
        assert_eq!(arrivals.peek(), None);
        arrivals.set_rate(3 * SECOND, 10.0);
        assert_eq!(arrivals.peek(), Some(3 * SECOND + SECOND / 10));
    }
}
