//! Measures the cost of requests on several paths to the server at the same offered rates.
//!
//! Paths are interleaved: each round measures every path once, in rotating order. Ratios compare the paths of one
//! round.

use std::io::Write;
use std::time::Duration;

use crate::error::Error;
use crate::experiments::common::rounds::{Rounds, measurement_order, print_line, spoilt_suffix};
use crate::goodput::Tally;
use crate::results::Row;
use crate::stage::{Cost, Helper, Pair, Session};

/// How many measurements are made, at which rates, and how long each takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Number of rounds.
    pub rounds: usize,
    /// Offered rates, in requests a second.
    pub rates: Vec<f64>,
    /// The rate of `rates` whose ratios are the main result of the experiment: their names have no suffix.
    pub main_rate_per_s: f64,
    /// Pause after each change of rate.
    pub settle: Duration,
    /// Length of each measurement.
    pub length: Duration,
    /// Maximum number of attempts at a spoilt measurement, the first included.
    pub attempts_max: u32,
}

impl Effort {
    /// Suffix of ratio names at a rate.
    pub(crate) fn suffix(&self, rate_per_s: f64) -> String {
        if rate_per_s == self.main_rate_per_s { String::new() } else { format!("_at_{rate_per_s}") }
    }
}

pub(crate) trait Path: Copy + PartialEq {
    /// The system's name in rows.
    fn name(self) -> &'static str;
}

/// All rounds of one path at one rate.
#[derive(Clone, Debug)]
pub(crate) struct Series<P> {
    pub path: P,
    pub rate_per_s: f64,
    pub costs: Rounds<Cost>,
}

impl<P: Path> Series<P> {
    /// A row of one figure over all valid rounds.
    pub fn row(&self, metric: &str, unit: &str, value: &dyn Fn(&Cost) -> Option<f64>, note: &str) -> Row {
        let values: Vec<f64> = self.costs.valid().filter_map(value).collect();
        let row = Row::new(self.path.name(), metric, unit, &values).param("offered_per_s", self.rate_per_s);
        row.note(note).note(self.costs.left_out())
    }

    /// A figure of each round; `None` if the round was spoilt.
    pub fn each(&self, value: fn(&Cost) -> f64) -> Vec<Option<f64>> {
        self.costs.each(value)
    }
}

pub(crate) fn find<P: Path>(series: &[Series<P>], path: P, rate_per_s: f64) -> Option<&Series<P>> {
    series.iter().find(|series| series.path == path && series.rate_per_s == rate_per_s)
}

/// Measures paths at the rates of an [`Effort`], and prints each result.
pub(crate) struct RateMeasurement<'a> {
    pub effort: &'a Effort,
    /// The server with the preload library and the one without; the run fails if one of the two processes ends.
    pub pair: &'a mut Pair,
    pub out: &'a mut dyn Write,
}

impl RateMeasurement<'_> {
    /// Measures each path at each rate. `start` starts the clients of a path and returns the helper whose batches are
    /// counted, if the path has one; `summary` formats a cost for the output. The returned `Result` is an error if the
    /// run stopped early; the other two values are then incomplete.
    pub fn run<'a, P: Path>(
        &mut self,
        paths: &[P],
        start: impl Fn(&Pair, P) -> Result<(Session<'a>, Option<&'a Helper>), Error>,
        summary: fn(&Cost) -> String,
    ) -> (Vec<Series<P>>, Tally, Result<(), Error>) {
        let Effort { rounds, rates, settle, length, attempts_max, .. } = self.effort;
        let mut series: Vec<Series<P>> = Vec::new();
        for &path in paths {
            let new_series = |&rate_per_s: &f64| Series { path, rate_per_s, costs: Rounds::default() };
            series.extend(rates.iter().map(new_series));
        }
        let mut tally = Tally::default();
        let outcome = measurement_order(*rounds, paths.len()).try_for_each(|(round, path_index)| {
            let (mut session, helper) = start(self.pair, paths[path_index])?;
            for (rate_index, &rate) in rates.iter().enumerate() {
                let cost = session.measure_until_valid(rate, *settle, *length, helper, *attempts_max)?;
                let (path, summary) = (paths[path_index].name(), summary(&cost));
                let spoilt = spoilt_suffix(cost.spoilt.as_deref());
                print_line(
                    self.out,
                    format_args!("round {}: {path} at {rate}/s: {summary}{spoilt}", round + 1),
                );
                let spoilt = cost.spoilt.clone();
                series[path_index * rates.len() + rate_index].costs.push((cost, spoilt));
            }
            tally.add(&session.finish()?);
            self.pair.check()
        });
        (series, tally, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Only;

    impl Path for Only {
        fn name(self) -> &'static str {
            "only"
        }
    }

    #[test]
    fn spoilt_rounds_keep_their_index_and_are_in_no_row() {
        let mut series = Series { path: Only, rate_per_s: 500.0, costs: Rounds::default() };
        for (wire_bytes, spoilt) in [(300, None), (900, Some("a stall".to_owned())), (500, None)] {
            series.costs.push((Cost { wire_bytes, requests: 1, ..Cost::default() }, spoilt));
        }
        assert_eq!(series.each(Cost::wire_bytes_each), [Some(300.0), None, Some(500.0)]);
        let row = series.row("bytes", "B", &|cost| Some(cost.wire_bytes_each()), "both ways");
        assert_eq!(
            (row.median, row.max, row.params["offered_per_s"].as_f64()),
            (Some(400.0), Some(500.0), Some(500.0))
        );
        assert!(row.why.starts_with("both ways; 1 of 3"), "{}", row.why);
        assert!(find(&[series], Only, 1_000.0).is_none());
    }

    #[test]
    fn ratio_names_at_the_main_rate_have_no_suffix() {
        let effort = Effort {
            rounds: 1,
            rates: vec![500.0, 1_000.0],
            main_rate_per_s: 1_000.0,
            settle: Duration::ZERO,
            length: Duration::ZERO,
            attempts_max: 1,
        };
        assert_eq!((effort.suffix(500.0), effort.suffix(1_000.0)), ("_at_500".into(), String::new()));
    }
}
