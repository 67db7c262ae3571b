//! Results of `helpers` as rows and ratios.

use super::{Measurement, Rounds, Series};
use crate::experiments::common::saturation::{few, limit_note};
use crate::generator::Engine;
use crate::results::{Ratio, Results, Row};
use crate::stats::paired_ratios;

pub(super) fn add_results(series: &[Series], results: &mut Results) {
    series.iter().for_each(|series| add_rows(series, results));
    let Some((base, others)) = series.split_first() else { return };
    if let Some(on_sockets) = others.iter().find(|other| other.engine != base.engine) {
        let rounds =
            paired_ratios(&base.each(Measurement::per_helper), &on_sockets.each(Measurement::per_helper));
        let name = format!("{}_goodput_per_helper_over_{}", base.engine.name(), on_sockets.engine.name());
        let note = "one helper each, with the same quota and clients";
        results.ratios.push(Ratio::new(&name, &rounds).void_if(few(rounds.len())).note(note));
    }
    for series in others.iter().filter(|other| other.engine == base.engine) {
        let pairs = [
            (
                "goodput_per_helper",
                Measurement::per_helper as fn(&Measurement, usize) -> f64,
                "linear is 1; paper: almost linear",
            ),
            (
                "helper_cpu",
                |measurement, _| measurement.helper_us,
                "CPU of the helpers for each request; flat is 1",
            ),
        ];
        for (name, value, note) in pairs {
            let rounds = paired_ratios(&series.each(value), &base.each(value));
            let prefix = if series.engine == Engine::Xdp { "xdp_" } else { "" };
            let ratio = Ratio::new(&format!("{prefix}{name}_{}_over_{}", series.count, base.count), &rounds);
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
    pub(super) fn new(engine: Engine, count: usize) -> Series {
        Series { engine, count, rounds: Rounds::default() }
    }

    fn each(&self, value: fn(&Measurement, usize) -> f64) -> Vec<Option<f64>> {
        self.rounds.each(|measurement| value(measurement, self.count))
    }
}

fn add_rows(series: &Series, results: &mut Results) {
    let note = limit_note(series.rounds.valid().filter_map(|measurement| measurement.limit.as_deref()));
    let spoilt = series.rounds.left_out();
    let mut row = |metric: &str, unit: &str, note: &str, value: &dyn Fn(&Measurement) -> Option<f64>| {
        let values: Vec<f64> = series.rounds.valid().filter_map(value).collect();
        let row = Row::new("helped", metric, unit, &values)
            .param("helpers", series.count)
            .param("engine", series.engine.name());
        results.rows.push(row.note(note).note(&spoilt));
    };
    row("goodput", "1/s", &note, &|measurement| Some(measurement.messages_per_s));
    row("goodput_per_helper", "1/s", &note, &|measurement| Some(measurement.per_helper(series.count)));
    row("helper_cpu_us_per_request", "µs", "", &|measurement| Some(measurement.helper_us));
    row("server_cpu_us_per_request", "µs", "", &|measurement| Some(measurement.server_us));
    row("server_cpu", "% of a core", "", &|measurement| Some(measurement.server_percent));
    row("messages_per_batch", "messages", "", &|measurement| measurement.messages_per_batch);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    /// Results of four rounds; a rate of 0 is a spoilt round.
    fn measurements(messages_per_s: [f64; 4], helper_us: f64) -> [Option<Measurement>; 4] {
        let measurement =
            |messages_per_s| Measurement { messages_per_s, helper_us, ..Measurement::default() };
        messages_per_s.map(|messages_per_s| (messages_per_s > 0.0).then(|| measurement(messages_per_s)))
    }

    #[test]
    fn linear_throughput_has_a_ratio_of_1_per_helper() {
        let mut results = Results::new("helpers", Machine::default());
        let one = measurements([4_000.0, 4_000.0, 4_000.0, 0.0], 30.0);
        let mut four = measurements([16_000.0, 14_400.0, 16_000.0, 16_000.0], 33.0);
        four[3].as_mut().unwrap().limit = Some("the helpers used 70 % of the quota".into());
        let series = [(1, one), (4, four)].map(|(count, rounds)| Series {
            rounds: rounds.into_iter().collect(),
            ..Series::new(Engine::Sockets, count)
        });
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
