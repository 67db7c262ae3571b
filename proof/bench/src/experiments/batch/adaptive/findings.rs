//! Figures of each step, the best policy, and its ratios to the reference policy.

use super::{Effort, FIRST_SEED, Measurement, Series};
use crate::results::{Ratio, Results, Row, few, left_out};

const ROUNDS_MIN: usize = 5;
/// A round is used only if at least this many of every ten steps are valid for both policies.
const STEPS_OF_TEN_MIN: usize = 7;

/// Ratios of one policy to another in the same round: geometric means over the steps.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Comparison {
    p99: f64,
    server_cpu: f64,
}

impl Comparison {
    /// `None` if both rounds have too few valid steps in common.
    fn of(
        steps: &[Result<Measurement, String>],
        reference: &[Result<Measurement, String>],
    ) -> Option<Comparison> {
        let both: Vec<(&Measurement, &Measurement)> = steps
            .iter()
            .zip(reference)
            .filter_map(|(step, reference)| step.as_ref().ok().zip(reference.as_ref().ok()))
            .collect();
        if both.is_empty() || both.len() * 10 < steps.len() * STEPS_OF_TEN_MIN {
            return None;
        }
        let mean = |value: fn(&Measurement) -> f64| {
            geometric_mean(both.iter().map(|(step, reference)| value(step) / value(reference)))
        };
        Some(Comparison {
            p99: mean(|measurement| measurement.p99_us),
            server_cpu: mean(|measurement| measurement.server_us),
        })
    }

    fn mean(rounds: &[Comparison]) -> Option<Comparison> {
        (!rounds.is_empty()).then(|| Comparison {
            p99: geometric_mean(rounds.iter().map(|comparison| comparison.p99)),
            server_cpu: geometric_mean(rounds.iter().map(|comparison| comparison.server_cpu)),
        })
    }

    /// Sort key: policies with both ratios at most 1 come first, then the smaller product.
    fn rank(&self) -> (bool, f64) {
        (self.p99 > 1.0 || self.server_cpu > 1.0, self.p99 * self.server_cpu)
    }
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value.ln(), count + 1));
    (sum / f64::from(count.max(1))).exp()
}

fn compare(series: &Series, reference: &Series) -> Vec<Option<Comparison>> {
    series
        .rounds
        .iter()
        .zip(&reference.rounds)
        .map(|(steps, reference)| Comparison::of(steps, reference))
        .collect()
}

/// Adds all rows and ratios to the results. The first series is the reference policy.
pub(super) fn add_results(series: &[Series], effort: &Effort, results: &mut Results) {
    series.iter().for_each(|series| add_rows(series, effort, results));
    let Some((reference, others)) = series.split_first() else { return };
    let comparisons: Vec<(&Series, Vec<Option<Comparison>>)> =
        others.iter().map(|other| (other, compare(other, reference))).collect();
    add_best_policy(&comparisons, effort, results);
    for (other, rounds) in &comparisons {
        let note = "geometric mean over the steps; the rounds that chose the policy are included";
        add_ratios(&format!("{}_over_adaptive", other.policy), rounds, note, results);
    }
}

/// Chooses the best policy in the first rounds, and adds its ratios in the others.
fn add_best_policy(
    comparisons: &[(&Series, Vec<Option<Comparison>>)],
    effort: &Effort,
    results: &mut Results,
) {
    let chosen = comparisons
        .iter()
        .filter_map(|(series, rounds)| {
            let choosing_rounds = &rounds[..effort.choosing.min(rounds.len())];
            let rank =
                Comparison::mean(&choosing_rounds.iter().copied().flatten().collect::<Vec<_>>())?.rank();
            Some((rank, series.policy, &rounds[choosing_rounds.len()..]))
        })
        .min_by(|((a_worse, a), ..), ((b_worse, b), ..)| a_worse.cmp(b_worse).then(a.total_cmp(b)));
    let first_judging_seed = FIRST_SEED + effort.choosing as u64;
    let (note, rounds) = match chosen {
        Some((_, policy, rounds)) => (
            format!(
                "{policy}, chosen on seeds {FIRST_SEED} to {} and judged on {first_judging_seed} to {}; geometric mean \
                 over the steps; expected both ≤ 1 and one ≤ 0.8",
                first_judging_seed - 1,
                FIRST_SEED + effort.rounds() as u64 - 1
            ),
            rounds,
        ),
        None => ("no policy could be chosen".to_owned(), &[][..]),
    };
    add_ratios("best_over_adaptive", rounds, &note, results);
}

fn add_ratios(name: &str, rounds: &[Option<Comparison>], note: &str, results: &mut Results) {
    let rounds: Vec<Comparison> = rounds.iter().copied().flatten().collect();
    let too_few = few(rounds.len(), "rounds", ROUNDS_MIN);
    for (metric, value) in [
        ("p99", (|comparison| comparison.p99) as fn(&Comparison) -> f64),
        ("server_cpu", |comparison| comparison.server_cpu),
    ] {
        let values: Vec<f64> = rounds.iter().map(value).collect();
        results
            .ratios
            .push(Ratio::new(&format!("{name}_{metric}"), &values).void_if(too_few.clone()).note(note));
    }
}

fn add_rows(series: &Series, effort: &Effort, results: &mut Results) {
    for (index, &rate) in effort.rates.iter().enumerate() {
        let steps: Vec<&Result<Measurement, String>> =
            series.rounds.iter().filter_map(|round| round.get(index)).collect();
        let spoilt: Vec<String> = steps.iter().filter_map(|step| step.as_ref().err().cloned()).collect();
        let note = left_out(&spoilt, steps.len());
        let mut row = |metric: &str, unit: &str, value: &dyn Fn(&Measurement) -> Option<f64>| {
            let values: Vec<f64> = steps.iter().filter_map(|step| value(step.as_ref().ok()?)).collect();
            let row = Row::new(series.policy, metric, unit, &values);
            results.rows.push(row.param("step", index + 1).param("offered_per_s", rate).note(&note));
        };
        row("p99_us", "µs", &|measurement| Some(measurement.p99_us));
        row("p50_us", "µs", &|measurement| Some(measurement.p50_us));
        row("server_cpu_us_per_request", "µs", &|measurement| Some(measurement.server_us));
        row("messages_per_batch", "messages", &|measurement| Some(measurement.messages_per_batch));
        row("batch_interval_us", "µs", &|measurement| Some(measurement.batch_interval_us));
        row("helper_cpu_us_per_request", "µs", &|measurement| Some(measurement.helper_us));
        if steps.iter().any(|step| step.as_ref().is_ok_and(|measurement| measurement.quota_share.is_some())) {
            row("quota_used", "%", &|measurement| measurement.quota_share.map(|share| share * 100.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn series(policy: &'static str, rounds: &[(f64, f64)]) -> Series {
        let step = |&(p99_us, server_us): &(f64, f64)| {
            Ok(Measurement { p99_us, server_us, messages_per_batch: 2.0, ..Measurement::default() })
        };
        Series { policy, rounds: rounds.iter().map(|round| vec![step(round); 7]).collect() }
    }

    fn results_of(series: &[Series]) -> Results {
        let mut results = Results::new("adaptive", Machine::default());
        add_results(series, &Effort::full(), &mut results);
        results
    }

    #[test]
    fn the_best_policy_is_chosen_in_the_first_rounds_and_measured_in_the_others() {
        let rounds = |first: (f64, f64), then: (f64, f64)| [vec![first; 3], vec![then; 5]].concat();
        let results = results_of(&[
            series("adaptive", &[(400.0, 10.0); 8]),
            // A smaller product, but a worse p99.
            series("fixed", &rounds((600.0, 2.0), (100.0, 1.0))),
            // Chosen in the first rounds, and less good in the others.
            series("deadline", &rounds((300.0, 9.0), (320.0, 9.5))),
        ]);
        let ratio = |name: &str| results.ratios.iter().find(|ratio| ratio.name == name).unwrap();
        let (p99, cpu) = (ratio("best_over_adaptive_p99"), ratio("best_over_adaptive_server_cpu"));
        assert!(p99.valid && p99.runs == 5 && (p99.median.unwrap() - 0.8).abs() < 1e-9, "{p99:?}");
        assert!((cpu.median.unwrap() - 0.95).abs() < 1e-9);
        assert!(p99.why.contains("deadline, chosen on seeds 10001 to 10003 and judged on 10004 to 10008"));
        assert_eq!(ratio("fixed_over_adaptive_p99").runs, 8);
        assert_eq!(results.rows.len(), 3 * 7 * 6);
    }

    #[test]
    fn rounds_with_too_many_spoilt_steps_do_not_count() {
        let adaptive = series("adaptive", &[(400.0, 10.0); 8]);
        let mut deadline = series("deadline", &[(300.0, 9.0); 8]);
        for (round, spoilt) in [(3, 2), (4, 3)] {
            deadline.rounds[round][..spoilt].fill(Err("a stall".into()));
        }
        let results = results_of(&[adaptive, deadline]);
        let ratio = results.ratios.iter().find(|ratio| ratio.name == "best_over_adaptive_p99").unwrap();
        assert!(!ratio.valid && ratio.runs == 4, "{ratio:?}");
        assert!((ratio.median.unwrap() - 0.75).abs() < 1e-9);
        let row = &results.rows[7 * 6];
        assert!(row.system == "deadline" && row.runs == 6 && row.why.contains("2 of 8"), "{row:?}");
    }

    #[test]
    fn without_rounds_all_ratios_are_void() {
        let results = results_of(&[series("adaptive", &[]), series("deadline", &[])]);
        assert!(results.ratios.iter().all(|ratio| !ratio.valid));
    }
}
