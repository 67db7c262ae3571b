//! The course of experiments that compare what requests cost by some ways at the same offered rates.
//!
//! Rounds are interleaved: each asks every way once, in turning order. Ratios compare within a round.

use std::io::Write;
use std::time::Duration;

use crate::error::Error;
use crate::experiments::common::rounds::{Rounds, say, spoilt_words, turns};
use crate::goodput::Tally;
use crate::results::Row;
use crate::stage::{Cost, Helper, Pair, Session};

/// How much is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Rounds.
    pub rounds: usize,
    /// Offered rates, in requests a second; ratios carry the name of the issue at [`Effort::main_per_s`].
    pub rates: Vec<f64>,
    /// The rate of the ratios that are looked at first; one of `rates`.
    pub main_per_s: f64,
    /// After each change of rate.
    pub settle: Duration,
    /// Of each measurement.
    pub length: Duration,
    /// A spoilt measurement is done so many times in all.
    pub tries: u32,
}

impl Effort {
    /// What the names of ratios at a rate end with.
    pub(crate) fn suffix(&self, rate_per_s: f64) -> String {
        if rate_per_s == self.main_per_s { String::new() } else { format!("_at_{rate_per_s}") }
    }
}

/// How requests reach the server.
pub(crate) trait Way: Copy + PartialEq {
    /// As rows call it.
    fn name(self) -> &'static str;
}

/// One way at one rate.
#[derive(Clone, Debug)]
pub(crate) struct Series<W> {
    pub way: W,
    pub rate_per_s: f64,
    pub costs: Rounds<Cost>,
}

impl<W: Way> Series<W> {
    /// A figure over the rounds, as a row.
    pub fn row(&self, metric: &str, unit: &str, value: &dyn Fn(&Cost) -> Option<f64>, note: &str) -> Row {
        let values: Vec<f64> = self.costs.good().filter_map(value).collect();
        let row = Row::new(self.way.name(), metric, unit, &values).param("offered_per_s", self.rate_per_s);
        row.note(note).note(self.costs.left_out())
    }

    /// A figure round by round.
    pub fn each(&self, value: fn(&Cost) -> f64) -> Vec<Option<f64>> {
        self.costs.each(value)
    }
}

/// The series of a way at a rate.
pub(crate) fn find<W: Way>(series: &[Series<W>], way: W, rate_per_s: f64) -> Option<&Series<W>> {
    series.iter().find(|series| series.way == way && series.rate_per_s == rate_per_s)
}

/// Where all ways are measured, and how much.
pub(crate) struct Course<'a> {
    pub effort: &'a Effort,
    /// None of its servers may end meanwhile.
    pub pair: &'a mut Pair,
    pub out: &'a mut dyn Write,
}

impl Course<'_> {
    /// Measures each way at each rate. `start` brings the clients of a way, and the helper whose batches are counted;
    /// `words` are what is told of a measurement. The last of what comes back says whether the course came to its end.
    pub fn run<'a, W: Way>(
        &mut self,
        ways: &[W],
        start: impl Fn(&Pair, W) -> Result<(Session<'a>, Option<&'a Helper>), Error>,
        words: fn(&Cost) -> String,
    ) -> (Vec<Series<W>>, Tally, Result<(), Error>) {
        let Effort { rounds, rates, settle, length, tries, .. } = self.effort;
        let mut series: Vec<Series<W>> = Vec::new();
        for &way in ways {
            let one = |&rate_per_s: &f64| Series { way, rate_per_s, costs: Rounds::default() };
            series.extend(rates.iter().map(one));
        }
        let mut tally = Tally::default();
        let course = turns(*rounds, ways.len()).try_for_each(|(round, at)| {
            let (mut session, helper) = start(self.pair, ways[at])?;
            for (n, &rate) in rates.iter().enumerate() {
                let cost = session.measure_again(rate, *settle, *length, helper, *tries)?;
                let (way, words) = (ways[at].name(), words(&cost));
                let spoilt = spoilt_words(cost.spoilt.as_deref());
                say(self.out, format_args!("round {}: {way} at {rate}/s: {words}{spoilt}", round + 1));
                let spoilt = cost.spoilt.clone();
                series[at * rates.len() + n].costs.take((cost, spoilt));
            }
            tally.add(&session.finish()?);
            self.pair.check()
        });
        (series, tally, course)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Only;

    impl Way for Only {
        fn name(self) -> &'static str {
            "only"
        }
    }

    #[test]
    fn spoilt_rounds_keep_their_place_and_are_in_no_row() {
        let mut series = Series { way: Only, rate_per_s: 500.0, costs: Rounds::default() };
        for (wire_bytes, spoilt) in [(300, None), (900, Some("a stall".to_owned())), (500, None)] {
            series.costs.take((Cost { wire_bytes, requests: 1, ..Cost::default() }, spoilt));
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
    fn ratios_at_the_main_rate_have_the_plain_name() {
        let effort = Effort {
            rounds: 1,
            rates: vec![500.0, 1_000.0],
            main_per_s: 1_000.0,
            settle: Duration::ZERO,
            length: Duration::ZERO,
            tries: 1,
        };
        assert_eq!((effort.suffix(500.0), effort.suffix(1_000.0)), ("_at_500".into(), String::new()));
    }
}
