//! Throughput and crossings as rows and ratios.

use super::{Effort, Measurement, Path, Series};
use crate::experiments::common::curves::{Crossing, crossing};
use crate::experiments::common::saturation::{few, limit_note};
use crate::results::{Ratio, Results, Row};
use crate::stats::paired_ratios;

pub(super) fn add_results(series: &[Series], effort: &Effort, results: &mut Results) {
    series.iter().for_each(|series| add_rows(series, results));
    for &quota in &effort.quotas_percent {
        let find = |path: Path, payload: usize| {
            series.iter().find(|series| {
                series.path == path && series.payload == payload && series.quota_percent == quota
            })
        };
        let pairs: Vec<(&Series, &Series)> = effort
            .payloads
            .iter()
            .filter_map(|&payload| Some((find(Path::Direct, payload)?, find(Path::Helped, payload)?)))
            .collect();
        let each = |series: &Series| series.rounds.each(|measurement| measurement.messages_per_s);
        for (direct, helped) in &pairs {
            let rounds = paired_ratios(&each(helped), &each(direct));
            let name = format!("helped_over_direct_{}_at_{quota}_percent", direct.payload);
            results.ratios.push(Ratio::new(&name, &rounds).void_if(few(rounds.len())));
        }
        results.rows.push(crossing_row("crossing_bytes", quota, &pairs, effort, |measurement| {
            measurement.messages_per_s
        }));
        // The crossing of costs is valid even if the server was not the limit.
        let messages_per_cpu_us = |measurement: &Measurement| 1.0 / measurement.server_us;
        results.rows.push(crossing_row("crossing_cpu_bytes", quota, &pairs, effort, messages_per_cpu_us));
    }
}

fn add_rows(series: &Series, results: &mut Results) {
    let note = limit_note(series.rounds.valid().filter_map(|measurement| measurement.limit.as_deref()));
    let spoilt = series.rounds.left_out();
    let mut row = |metric: &str, unit: &str, note: &str, value: &dyn Fn(&Measurement) -> Option<f64>| {
        let values: Vec<f64> = series.rounds.valid().filter_map(value).collect();
        let row = Row::new(series.path.name(), metric, unit, &values).param("payload_bytes", series.payload);
        results.rows.push(row.param("quota_percent", series.quota_percent).note(note).note(&spoilt));
    };
    row("messages_per_s", "1/s", &note, &|measurement| Some(measurement.messages_per_s));
    let megabytes = |measurement: &Measurement| measurement.messages_per_s * series.payload as f64 / 1e6;
    row("goodput_mb_per_s", "MB/s", "payload, one way", &|measurement| Some(megabytes(measurement)));
    row("server_cpu_us_per_message", "µs", "", &|measurement| Some(measurement.server_us));
    row("quota_used", "%", "", &|measurement| Some(100.0 * measurement.quota_share));
    if series.path == Path::Helped {
        row("messages_per_batch", "messages", "", &|measurement| measurement.messages_per_batch);
    }
}

/// The payload at which helped and direct are equal, over all rounds.
fn crossing_row(
    metric: &str,
    quota: f64,
    pairs: &[(&Series, &Series)],
    effort: &Effort,
    value: impl Fn(&Measurement) -> f64,
) -> Row {
    let crossings: Vec<Crossing> = (0..effort.rounds)
        .filter_map(|round| {
            let value_of = |series: &Series| series.rounds.get(round).map(&value);
            let ratio = |(direct, helped): &(&Series, &Series)| {
                Some((direct.payload as f64, value_of(helped)? / value_of(direct)?))
            };
            let found = crossing(&pairs.iter().filter_map(ratio).collect::<Vec<_>>())?;
            // A crossing below the first valid payload of this round is unknown if smaller payloads were spoilt.
            let is_unknown = matches!(found, Crossing::Before(bytes) if pairs[0].0.payload as f64 != bytes);
            (!is_unknown).then_some(found)
        })
        .collect();
    let count = |kind: fn(&Crossing) -> bool| crossings.iter().filter(|crossing| kind(crossing)).count();
    let note = |count: usize, text: &str| (count > 0).then(|| format!("{text} in {count} rounds"));
    let beyond = note(
        count(|crossing| matches!(crossing, Crossing::Beyond(_))),
        "at least: helped is ahead at every payload",
    );
    let before = note(
        count(|crossing| matches!(crossing, Crossing::Before(_))),
        "at most: helped is behind at every payload",
    );
    let values: Vec<f64> = crossings.iter().map(|crossing| crossing.position()).collect();
    let row = Row::new("helped", metric, "B", &values).param("quota_percent", quota);
    row.note(beyond.unwrap_or_default()).note(before.unwrap_or_default()).void_if(few(values.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn series(path: Path, payload: usize, messages_per_s: f64, server_us: f64) -> Series {
        let measurement = Measurement { messages_per_s, server_us, ..Measurement::default() };
        Series { path, payload, quota_percent: 5.0, rounds: vec![Some(measurement); 5].into_iter().collect() }
    }

    fn results_of(series: &[Series]) -> Results {
        let mut payloads: Vec<usize> = series.iter().map(|series| series.payload).collect();
        payloads.dedup();
        let effort = Effort { payloads, quotas_percent: vec![5.0], ..Effort::full() };
        let mut results = Results::new("payload", Machine::default());
        add_results(series, &effort, &mut results);
        results
    }

    #[test]
    fn the_crossing_lies_between_payloads() {
        let results = results_of(&[
            series(Path::Direct, 1_024, 1_000.0, 50.0),
            series(Path::Helped, 1_024, 2_000.0, 10.0),
            series(Path::Direct, 4_096, 1_000.0, 60.0),
            series(Path::Helped, 4_096, 500.0, 40.0),
        ]);
        let row = |metric: &str| results.rows.iter().find(|row| row.metric == metric).unwrap();
        let crossing = row("crossing_bytes");
        assert!(crossing.valid && (crossing.median.unwrap() - 2_048.0).abs() < 1e-6, "{crossing:?}");
        let cpu = row("crossing_cpu_bytes");
        assert_eq!(cpu.median, Some(4_096.0));
        assert!(cpu.why.contains("at least") && cpu.why.contains("5 rounds"), "{cpu:?}");
        let ratio = &results.ratios[0];
        assert_eq!((ratio.name.as_str(), ratio.median), ("helped_over_direct_1024_at_5_percent", Some(2.0)));
        assert!((row("goodput_mb_per_s").median.unwrap() - 1.024).abs() < 1e-9);
    }

    #[test]
    fn a_spoilt_payload_is_left_out_of_its_own_round_only() {
        let mut all = [
            series(Path::Direct, 1_024, 1_000.0, 50.0),
            series(Path::Helped, 1_024, 900.0, 60.0),
            series(Path::Direct, 4_096, 1_000.0, 60.0),
            series(Path::Helped, 4_096, 500.0, 70.0),
        ];
        let measurement = all[1].rounds.get(0).cloned();
        all[1].rounds = (0..5).map(|round| measurement.clone().filter(|_| round > 0)).collect();
        let results = results_of(&all);
        let row = results.rows.iter().find(|row| row.metric == "crossing_bytes").unwrap();
        assert_eq!((row.median, row.runs, row.valid), (Some(1_024.0), 4, true));
        assert!(row.why.contains("at most"), "{row:?}");
        assert_eq!((results.ratios[0].runs, results.ratios[1].runs), (4, 5));
    }
}
