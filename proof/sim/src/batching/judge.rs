//! Comparison of policies by p99 and the server's CPU time together.

use spillway_batch::PolicyKind;

use super::load::LoadCourse;
use super::world::{Figures, Setting, simulate};

/// Ratios of a policy's figures to a reference policy's: geometric means over the steps. Lower is better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatiosToReference {
    /// Ratio of p99 latencies.
    pub p99: f64,
    /// Ratio of the server's CPU times per request.
    pub server_cpu: f64,
}

impl RatiosToReference {
    /// The geometric means of several runs.
    pub fn mean(runs: &[RatiosToReference]) -> RatiosToReference {
        RatiosToReference {
            p99: geometric_mean(runs.iter().map(|run| run.p99)),
            server_cpu: geometric_mean(runs.iter().map(|run| run.server_cpu)),
        }
    }

    /// The product of both ratios.
    pub fn score(&self) -> f64 {
        self.p99 * self.server_cpu
    }

    /// Whether neither figure is higher than the reference's.
    pub fn is_at_most_reference(&self) -> bool {
        self.p99 <= 1.0 && self.server_cpu <= 1.0
    }
}

/// Compares a run with one of the same course under another policy, step by step.
pub fn ratios(ours: &[Figures], theirs: &[Figures]) -> RatiosToReference {
    let mean = |of: fn(&Figures) -> f64| {
        geometric_mean(ours.iter().zip(theirs).map(|(ours, theirs)| of(ours) / of(theirs)))
    };
    RatiosToReference { p99: mean(|step| step.p99_us), server_cpu: mean(|step| step.server_us) }
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value.ln(), count + 1));
    (sum / f64::from(count.max(1))).exp()
}

/// A comparison of policies with a reference policy, on one course and setting.
#[derive(Clone, Debug)]
pub struct BatchingComparison {
    /// The load on the server.
    pub course: LoadCourse,
    /// Costs and quota of the server.
    pub setting: Setting,
    /// The policy with which candidates are compared.
    pub reference: PolicyKind,
}

impl BatchingComparison {
    /// Compares a policy with the reference, over all `seeds`.
    pub fn judge(&self, policy: PolicyKind, seeds: impl IntoIterator<Item = u64>) -> RatiosToReference {
        let run = |seed| {
            let ours = simulate(&self.course, policy, &self.setting, seed);
            ratios(&ours, &simulate(&self.course, self.reference, &self.setting, seed))
        };
        RatiosToReference::mean(&seeds.into_iter().map(run).collect::<Vec<_>>())
    }

    /// The candidate with the lowest score over `seeds`. Candidates that are worse than the reference in a
    /// figure are chosen only if all are.
    pub fn choose(
        &self,
        candidates: &[PolicyKind],
        seeds: impl IntoIterator<Item = u64> + Clone,
    ) -> Option<PolicyKind> {
        let judged = candidates.iter().map(|&policy| (self.judge(policy, seeds.clone()), policy));
        let rank = |judged: &RatiosToReference| (!judged.is_at_most_reference(), judged.score());
        judged
            .min_by(|(a, _), (b, _)| {
                let ((a_worse, a), (b_worse, b)) = (rank(a), rank(b));
                a_worse.cmp(&b_worse).then(a.total_cmp(&b))
            })
            .map(|(_, policy)| policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_the_same_weight_in_the_mean() {
        let step = |p99_us, server_us| Figures { p99_us, server_us, ..Figures::default() };
        let judged = ratios(&[step(50.0, 8.0), step(2_000.0, 4.0)], &[step(100.0, 8.0), step(1_000.0, 8.0)]);
        assert!((judged.p99 - 1.0).abs() < 1e-9 && (judged.server_cpu - 0.5_f64.sqrt()).abs() < 1e-9);
        assert!(!RatiosToReference { p99: 1.01, server_cpu: 0.5 }.is_at_most_reference());
    }
}
