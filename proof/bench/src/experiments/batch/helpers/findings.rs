//! Results of `helpers` as rows and ratios.

use super::{Measurement, Series};
use crate::experiments::common::saturation::{few, limit_note};
use crate::results::{Ratio, Results, Row};
use crate::stats::paired_ratios;

pub(super) fn add_results(series: &[Series], results: &mut Results) {
    series.iter().for_each(|series| rows(series, results));
    let Some((one, more)) = series.split_first() else { return };
    for many in more {
        let pairs = [
            (
                "goodput_per_helper",
                Measurement::per_helper as fn(&Measurement, usize) -> f64,
                "linear is 1; paper: almost linear",
            ),
            ("helper_cpu", |seen, _| seen.helper_us, "CPU of the helpers for each request; flat is 1"),
        ];
        for (name, value, note) in pairs {
            let rounds = paired_ratios(&many.each(value), &one.each(value));
            let ratio = Ratio::new(&format!("{name}_{}_over_{}", many.count, one.count), &rounds);
            results.ratios.push(ratio.void_if(few(rounds.len())).note(note));
        }
    }
}

impl Measurement {
    fn per_helper(&self, count: usize) -> f64 {
        self.messages_per_s / count.max(1) as f64
    }
}

impl Series {
    fn each(&self, value: fn(&Measurement, usize) -> f64) -> Vec<Option<f64>> {
        self.rounds.each(|seen| value(seen, self.count))
    }
}

fn rows(series: &Series, results: &mut Results) {
    let note = limit_note(series.rounds.good().filter_map(|seen| seen.limit.as_deref()));
    let spoilt = series.rounds.left_out();
    let mut row = |metric: &str, unit: &str, note: &str, value: &dyn Fn(&Measurement) -> Option<f64>| {
        let values: Vec<f64> = series.rounds.good().filter_map(value).collect();
        let row = Row::new("helped", metric, unit, &values).param("helpers", series.count);
        results.rows.push(row.note(note).note(&spoilt));
    };
    row("goodput", "1/s", &note, &|seen| Some(seen.messages_per_s));
    row("goodput_per_helper", "1/s", &note, &|seen| Some(seen.per_helper(series.count)));
    row("helper_cpu_us_per_request", "µs", "", &|seen| Some(seen.helper_us));
    row("server_cpu_us_per_request", "µs", "", &|seen| Some(seen.server_us));
    row("server_cpu", "% of a core", "", &|seen| Some(seen.server_percent));
    row("messages_per_batch", "messages", "", &|seen| seen.messages_per_batch);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    /// Results of four rounds; a rate of 0 is a spoilt round.
    fn seen(messages_per_s: [f64; 4], helper_us: f64) -> [Option<Measurement>; 4] {
        let seen = |messages_per_s| Measurement { messages_per_s, helper_us, ..Measurement::default() };
        messages_per_s.map(|messages_per_s| (messages_per_s > 0.0).then(|| seen(messages_per_s)))
    }

    #[test]
    fn linear_growth_is_a_ratio_of_one_per_helper() {
        let mut results = Results::new("helpers", Machine::default());
        let one = seen([4_000.0, 4_000.0, 4_000.0, 0.0], 30.0);
        let mut four = seen([16_000.0, 14_400.0, 16_000.0, 16_000.0], 33.0);
        four[3].as_mut().unwrap().limit = Some("the helpers used 70 % of the quota".into());
        let series =
            [(1, one), (4, four)].map(|(count, seen)| Series { count, rounds: seen.into_iter().collect() });
        add_results(&series, &mut results);
        let ratio = |name: &str| results.ratios.iter().find(|r| r.name == name).unwrap();
        let linear = ratio("goodput_per_helper_4_over_1");
        assert_eq!((linear.median, linear.runs, linear.valid), (Some(1.0), 3, true));
        assert!((linear.min.unwrap() - 0.9).abs() < 1e-9, "{linear:?}");
        assert!((ratio("helper_cpu_4_over_1").median.unwrap() - 1.1).abs() < 1e-9);
        let row = results.rows.iter().rfind(|row| row.metric == "goodput_per_helper").unwrap();
        assert_eq!(row.median, Some(4_000.0));
        assert!(row.why.contains("at least (1 rounds)"), "{row:?}");
    }
}
