//! Latency curves, the ranges of rates in which helping pays (the helped p99 is below the direct p99), and ratios of the
//! two.

use super::{Effort, Series};
use crate::experiments::common::curves::{HelpfulRange, Point, USEFUL_LIMIT_US, helpful_range};
use crate::measure::Step;
use crate::results::{Ratio, Results, Row, few, left_out};
use crate::stats::paired_ratios;

const ROUNDS_MIN: usize = 3;

pub(super) fn add_results(series: &[Series], effort: &Effort, results: &mut Results) {
    series.iter().for_each(|series| add_rows(series, effort, results));
    for helped in series.iter().filter(|series| series.helpers > 0) {
        let is_direct = |direct: &&Series| direct.helpers == 0 && direct.operation == helped.operation;
        if let Some(direct) = series.iter().find(is_direct) {
            add_helpful_range(direct, helped, effort, results);
            add_ratios(direct, helped, effort, results);
        }
    }
}

impl Series {
    fn points(&self, rate_index: usize) -> impl Iterator<Item = &Point> {
        self.rounds.iter().filter_map(move |curve| curve.get(rate_index).map(|(point, _)| point))
    }

    fn p99(&self, rate_index: usize) -> Vec<Option<f64>> {
        let p99 = |point: &Point| if let Point::P99(us) = point { Some(*us as f64) } else { None };
        self.points(rate_index).map(p99).collect()
    }

    /// The steps of all rounds with a p99 at `rates[rate_index]`.
    fn steps(&self, rate_index: usize) -> impl Iterator<Item = &Step> {
        self.rounds.iter().filter_map(move |curve| match curve.get(rate_index) {
            Some((Point::P99(_), Some(step))) => Some(step),
            _ => None,
        })
    }

    fn row(&self, metric: &str, unit: &str, values: &[f64]) -> Row {
        let row = Row::new(&self.system(), metric, unit, values);
        row.param("operation", self.operation.name()).param("helpers", self.helpers)
    }
}

fn add_rows(series: &Series, effort: &Effort, results: &mut Results) {
    for (rate_index, &rate) in effort.rates.iter().enumerate() {
        let over = series.points(rate_index).filter(|point| matches!(point, Point::Over)).count();
        let mut spoilt = Vec::new();
        let mut limits = Vec::new();
        for point in series.points(rate_index) {
            match point {
                Point::Spoilt(why) => spoilt.push(why.clone()),
                Point::Limit(why) => limits.push(why.clone()),
                Point::P99(_) | Point::Over => {}
            }
        }
        let rounds = series.rounds.len();
        let late = (over > 0).then(|| {
            format!("p99 above {USEFUL_LIMIT_US} µs, or over 1 % unanswered, in {over} of {rounds} rounds")
        });
        let limit = limits.first().map(|why| {
            format!("not measurable on this machine in {} of {rounds} rounds: {why}", limits.len())
        });
        let note = |row: Row| {
            let row = row.param("offered_per_s", rate).note(left_out(&spoilt, rounds));
            row.note(late.as_deref().unwrap_or("")).note(limit.as_deref().unwrap_or(""))
        };
        let p99: Vec<f64> = series.p99(rate_index).into_iter().flatten().collect();
        results.rows.push(note(series.row("p99_us", "µs", &p99)));
        if p99.is_empty() {
            continue;
        }
        let mut step_row = |metric: &str, unit: &str, value: &dyn Fn(&Step) -> Option<f64>| {
            let values: Vec<f64> = series.steps(rate_index).filter_map(value).collect();
            results.rows.push(series.row(metric, unit, &values).param("offered_per_s", rate));
        };
        step_row("p50_us", "µs", &|step| step.span.quantile_us(0.5).map(|us| us as f64));
        step_row("server_cpu", "% of a core", &|step| Some(step.used.server_percent()));
        if series.helpers > 0 {
            step_row("messages_per_batch", "messages", &|step| step.used.messages_per_batch());
        }
    }
}

/// Adds the range of rates in which helping pays, over all rounds.
fn add_helpful_range(direct: &Series, helped: &Series, effort: &Effort, results: &mut Results) {
    let points = |curve: &super::Curve| curve.iter().map(|(point, _)| point.clone()).collect::<Vec<_>>();
    let rounds: Vec<(Option<HelpfulRange>, bool)> = direct
        .rounds
        .iter()
        .zip(&helped.rounds)
        .map(|(direct, helped)| {
            let (direct, helped) = (points(direct), points(helped));
            let range = helpful_range(&effort.rates, &direct, &helped);
            let is_open = range.is_some_and(|range| is_open(range, &effort.rates, &direct, &helped));
            (range, is_open)
        })
        .collect();
    let values = |end: fn(&HelpfulRange) -> f64| -> Vec<f64> {
        rounds.iter().filter_map(|(range, _)| range.as_ref().map(end)).collect()
    };
    let never = rounds.iter().filter(|(range, _)| range.is_none()).count();
    let never = (never > 0).then(|| format!("in {never} of {} rounds helping paid at no rate", rounds.len()));
    let open = rounds.iter().filter(|(_, is_open)| *is_open).count();
    let open = (open > 0).then(|| {
        format!(
            "lower bound: in {open} of {} rounds helping still paid at the highest rate that was measured",
            rounds.len()
        )
    });
    for (metric, values, note) in [
        ("pays_from_per_s", values(|range| range.from), None),
        ("pays_until_per_s", values(|range| range.until), open.as_deref()),
    ] {
        let too_few = few(values.len(), "rounds", ROUNDS_MIN);
        let row = helped.row(metric, "1/s", &values).note(never.as_deref().unwrap_or(""));
        results.rows.push(row.note(note.unwrap_or("")).void_if(too_few));
    }
}

/// Whether helping may pay at rates above the range, too: it still pays at the highest rate at which both curves are
/// known, and no measured rate was too high for helping.
fn is_open(range: HelpfulRange, rates: &[f64], direct: &[Point], helped: &[Point]) -> bool {
    let is_known = |point: &Point| matches!(point, Point::P99(_) | Point::Over);
    let mut known = rates.iter().zip(direct.iter().zip(helped));
    let highest = known.rfind(|(_, (direct, helped))| is_known(direct) && is_known(helped));
    highest.is_some_and(|(&rate, _)| rate <= range.until)
        && !helped.iter().any(|point| matches!(point, Point::Over))
}

/// Adds the ratio of the helped p99 to the direct p99 for each rate that has both in at least one round.
fn add_ratios(direct: &Series, helped: &Series, effort: &Effort, results: &mut Results) {
    for (rate_index, &rate) in effort.rates.iter().enumerate() {
        let rounds = paired_ratios(&helped.p99(rate_index), &direct.p99(rate_index));
        if rounds.is_empty() {
            continue;
        }
        let name = format!("p99_{}_helped_{}_over_direct_at_{rate}", helped.operation.name(), helped.helpers);
        let too_few = few(rounds.len(), "rounds", ROUNDS_MIN);
        results.ratios.push(Ratio::new(&name, &rounds).void_if(too_few));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Operation;
    use super::*;
    use crate::machine::Machine;

    fn effort() -> Effort {
        Effort {
            rounds: 3,
            rates: vec![1_000.0, 2_000.0, 4_000.0],
            helpers: vec![1],
            connections: 10,
            settle: Duration::ZERO,
            length: Duration::ZERO,
            attempts_max: 1,
        }
    }

    /// Three equal rounds; a p99 of 0 is `Point::Over`.
    fn series(operation: Operation, helpers: usize, p99: [u64; 3]) -> Series {
        let point = |us: u64| if us == 0 { Point::Over } else { Point::P99(us) };
        let curve = p99.map(|us| (point(us), (us > 0).then(Step::default)));
        Series { operation, helpers, rounds: vec![curve.into(); 3] }
    }

    fn results_of(series: &[Series]) -> Results {
        let mut results = Results::new("load-latency", Machine::default());
        add_results(series, &effort(), &mut results);
        results
    }

    #[test]
    fn helped_is_compared_with_the_same_operation_direct() {
        let results = results_of(&[
            series(Operation::Get, 0, [200, 800, 0]),
            series(Operation::Get, 1, [400, 400, 500]),
            series(Operation::Set, 0, [200, 300, 400]),
            series(Operation::Set, 1, [300, 400, 0]),
        ]);
        let row = |metric: &str, operation: &str| {
            let found = results.rows.iter().find(|row| {
                row.metric == metric && row.params["operation"] == operation && row.params["helpers"] == 1
            });
            found.unwrap()
        };
        let from = row("pays_from_per_s", "get");
        // The ratio is 2 at 1,000/s and 1/2 at 2,000/s: on logarithmic scales the crossing is half way.
        assert!(from.valid && (from.median.unwrap() / 2.0f64.sqrt() - 1_000.0).abs() < 1e-6, "{from:?}");
        let until = row("pays_until_per_s", "get");
        assert_eq!(until.median, Some(4_000.0));
        assert!(until.why.contains("lower bound: in 3 of 3 rounds"), "{until:?}");
        let never = row("pays_from_per_s", "set");
        assert!(!never.valid && never.why.contains("3 of 3 rounds helping paid at no rate"), "{never:?}");
        let ratio = results.ratios.iter().find(|r| r.name == "p99_get_helped_1_over_direct_at_2000").unwrap();
        assert_eq!((ratio.median, ratio.runs, ratio.valid), (Some(0.5), 3, true));
        assert!(results.ratios.iter().all(|r| r.name != "p99_get_helped_1_over_direct_at_4000"));
    }

    #[test]
    fn latencies_above_the_useful_limit_have_a_note_and_no_value() {
        let results = results_of(&[series(Operation::Get, 0, [200, 800, 0])]);
        let rows: Vec<_> = results.rows.iter().filter(|row| row.metric == "p99_us").collect();
        assert!(rows.len() == 3 && rows[0].valid && !rows[2].valid);
        assert!(rows[2].why.contains("over 1 % unanswered, in 3 of 3 rounds"), "{}", rows[2].why);
        assert_eq!(results.rows.iter().filter(|row| row.metric == "server_cpu").count(), 2);
    }

    #[test]
    fn a_helpful_range_that_ends_below_the_highest_measured_rate_is_not_open_ended() {
        let direct = series(Operation::Get, 0, [500, 800, 400]);
        let results = results_of(&[direct, series(Operation::Get, 1, [400, 400, 500])]);
        let until = results.rows.iter().find(|row| row.metric == "pays_until_per_s").unwrap();
        assert!(until.median == Some(2_000.0) && !until.why.contains("lower bound"), "{until:?}");
    }

    #[test]
    fn a_limit_of_the_machine_makes_the_helpful_range_open_ended() {
        let mut helped = series(Operation::Get, 1, [400, 400, 0]);
        for curve in &mut helped.rounds {
            curve[2].0 = Point::Limit("the clients used 85 % of a core".into());
        }
        let results = results_of(&[series(Operation::Get, 0, [500, 0, 0]), helped]);
        let until = results.rows.iter().find(|row| row.metric == "pays_until_per_s").unwrap();
        assert!(until.median == Some(2_000.0) && until.why.contains("lower bound"), "{until:?}");
        let last = results.rows.iter().rfind(|row| row.metric == "p99_us").unwrap();
        assert!(
            !last.valid && last.why.contains("not measurable on this machine in 3 of 3 rounds"),
            "{last:?}"
        );
    }
}
