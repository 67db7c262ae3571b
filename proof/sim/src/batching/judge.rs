//! Which policy is the best, by p99 and by the server's CPU time together.

use spillway_batch::PolicyKind;

use super::load::Course;
use super::world::{Figures, Setting, play};

/// How a policy compares with the one that it is to be better than: geometric means over the steps of a course.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// Of p99.
    pub p99: f64,
    /// Of the server's CPU time for each request.
    pub server_cpu: f64,
}

impl Judged {
    /// Several runs as one: geometric means again.
    pub fn mean(runs: &[Judged]) -> Judged {
        Judged {
            p99: geometric_mean(runs.iter().map(|run| run.p99)),
            server_cpu: geometric_mean(runs.iter().map(|run| run.server_cpu)),
        }
    }

    /// Better in neither is worse than equal: lower is better, and both count the same.
    pub fn score(&self) -> f64 {
        self.p99 * self.server_cpu
    }

    /// Worse in nothing.
    pub fn is_no_worse(&self) -> bool {
        self.p99 <= 1.0 && self.server_cpu <= 1.0
    }
}

/// One run by the same run under another policy, step by step.
pub fn ratios(ours: &[Figures], theirs: &[Figures]) -> Judged {
    let mean = |of: fn(&Figures) -> f64| {
        geometric_mean(ours.iter().zip(theirs).map(|(ours, theirs)| of(ours) / of(theirs)))
    };
    Judged { p99: mean(|step| step.p99_us), server_cpu: mean(|step| step.server_us) }
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value.ln(), count + 1));
    (sum / f64::from(count.max(1))).exp()
}

/// Policies that compete on one course.
#[derive(Clone, Debug)]
pub struct Contest {
    /// The load.
    pub course: Course,
    /// The server.
    pub setting: Setting,
    /// The policy to beat.
    pub reference: PolicyKind,
}

impl Contest {
    /// A policy against the reference, over all these seeds.
    pub fn judge(&self, policy: PolicyKind, seeds: impl IntoIterator<Item = u64>) -> Judged {
        let run = |seed| {
            let ours = play(&self.course, policy, &self.setting, seed);
            ratios(&ours, &play(&self.course, self.reference, &self.setting, seed))
        };
        Judged::mean(&seeds.into_iter().map(run).collect::<Vec<_>>())
    }

    /// The candidate with the lowest score over these seeds, of those that are worse in nothing if there are any.
    pub fn choose(
        &self,
        candidates: &[PolicyKind],
        seeds: impl IntoIterator<Item = u64> + Clone,
    ) -> Option<PolicyKind> {
        let judged = candidates.iter().map(|&policy| (self.judge(policy, seeds.clone()), policy));
        let rank = |judged: &Judged| (!judged.is_no_worse(), judged.score());
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
    fn steps_count_the_same_whatever_their_size() {
        let step = |p99_us, server_us| Figures { p99_us, server_us, ..Figures::default() };
        let judged = ratios(&[step(50.0, 8.0), step(2_000.0, 4.0)], &[step(100.0, 8.0), step(1_000.0, 8.0)]);
        assert!((judged.p99 - 1.0).abs() < 1e-9 && (judged.server_cpu - 0.5_f64.sqrt()).abs() < 1e-9);
        assert!(!Judged { p99: 1.01, server_cpu: 0.5 }.is_no_worse());
    }
}
