//! Results of `server-cost` as rows, ratios and checks.

use spillway_load::config::ProtocolKind;

use super::{Effort, Measured, Offered, Path, Series, request_name};
use crate::results::{Check, Ratio, Results, Row, few, left_out};
use crate::stage::Cost;
use crate::stats::{median, paired_ratios};

/// Minimum number of pairs for a ratio that differs from 1 by a few percent.
const PAIRS_MIN: usize = 15;

const SHIM_EXPECTED: &str = "expected ≤ 1.05 (upper95); PostMan's library up to 1.5";

/// Notes for the ratios of batches: server, batch size, text.
const EXPECTED: [(ProtocolKind, u16, &str); 4] = [
    (ProtocolKind::Memcached, 200, "expected ≥ 13, prototype 13"),
    (ProtocolKind::Memcached, 20, "expected ≥ 4.3, prototype 4.3"),
    (ProtocolKind::Redis, 200, "expected ≥ 11, prototype 11"),
    (ProtocolKind::Redis, 20, "expected ≥ 3.8, prototype 3.8"),
];

/// Notes for the ratios of encrypted links: batch size, text.
const ENCRYPTED_EXPECTED: [(u16, &str); 2] = [(20, "expected ≤ 1.10"), (200, "expected ≤ 1.05")];

pub(super) fn add_results(measured: &mut Measured, effort: &Effort, results: &mut Results) {
    for series in &measured.series {
        add_series_rows(series, results);
    }
    for offered in &measured.offered {
        add_offered_rows(offered, results);
    }
    for idle in &measured.idle {
        let row = |system: &str, metric: &str, value: f64| {
            Row::new(system, metric, "% of a core", &[value]).param("server", idle.protocol.to_string())
        };
        results.rows.push(row("helper", "idle_helper_cpu_percent", idle.helper_percent).note("expected < 1"));
        // The server's own timers use CPU time without the preload library as well: subtract it.
        let shim = idle.shim_percent - idle.plain_percent;
        results.rows.push(
            row("with shim", "idle_shim_cpu_percent", shim)
                .note("expected < 0.1; with the shim − without it"),
        );
        results.rows.push(row("with shim", "idle_server_cpu_percent", idle.shim_percent));
        results.rows.push(row("without shim", "idle_server_cpu_percent", idle.plain_percent));
    }
    add_ratios(measured, effort, results);
    results.checks = measured.tally.checks();
    // Always 0: a driver ends the experiment at its first wrong byte.
    results.checks.push(Check::none("wrong_in_batches", 0, &format!("{} replies", measured.driver_requests)));
}

fn add_series_rows(series: &Series, results: &mut Results) {
    let spoilt = left_out(&series.spoilt, series.costs.len());
    let mut row = |metric: &str, unit: &str, value: fn(&Cost) -> f64| {
        let values: Vec<f64> = series.costs.iter().flatten().map(value).collect();
        let mut row = Row::new(&series.path.name(), metric, unit, &values)
            .param("server", series.protocol.to_string())
            .param("request", request_name(series.get_ratio))
            .param("value_bytes", series.value_size)
            .param("part", series.part)
            .note(&spoilt);
        if let Some(links) = series.path.links() {
            row = row.param("links", links);
        }
        results.rows.push(row);
    };
    row("server_cpu_us_per_request", "µs", Cost::server_us);
    if series.part != "mixes" {
        row("requests_per_s", "1/s", Cost::rate_per_s);
        row("server_interface_share", "%", |cost| 100.0 * cost.used.interface_share());
        row("server_cpu", "% of a core", |cost| cost.used.server_percent());
    }
}

fn add_offered_rows(offered: &Offered, results: &mut Results) {
    let runs = offered.direct.len() + offered.helped.len();
    let spoilt = left_out(&offered.spoilt, runs);
    let row = |system: &str, metric: &str, unit: &str, values: &[f64]| {
        Row::new(system, metric, unit, values)
            .param("server", offered.protocol.to_string())
            .param("offered_per_s", offered.rate_per_s)
            .note(&spoilt)
    };
    for (system, costs) in [("direct, without shim", &offered.direct), ("helped", &offered.helped)] {
        let values_of = |value: &dyn Fn(&Cost) -> Option<f64>| {
            costs.iter().flatten().filter_map(value).collect::<Vec<f64>>()
        };
        let quantile = |q: f64| values_of(&|cost: &Cost| cost.span.quantile_us(q).map(|us| us as f64));
        let server = values_of(&|cost| Some(cost.server_us()));
        results.rows.push(row(system, "server_cpu_us_per_request", "µs", &server));
        results.rows.push(row(system, "p50_us", "µs", &quantile(0.5)));
        results.rows.push(row(system, "p99_us", "µs", &quantile(0.99)));
        results.rows.push(row(
            system,
            "total_cpu_us_per_request",
            "µs",
            &values_of(&|cost| Some(cost.total_us())),
        ));
        if system == "helped" {
            let batches = values_of(&|cost| cost.used.messages_per_batch());
            results.rows.push(row(system, "messages_per_batch", "messages", &batches));
            let helper = values_of(&|cost| Some(cost.middle_us()));
            results.rows.push(row(system, "helper_cpu_us_per_request", "µs", &helper));
        }
    }
    for (metric, q) in [("added_delay_p50_us", 0.5), ("added_delay_p99_us", 0.99)] {
        let quantile = |costs: &[Option<Cost>]| -> Vec<Option<f64>> {
            costs.iter().map(|cost| cost.as_ref()?.span.quantile_us(q).map(|us| us as f64)).collect()
        };
        let (helped, direct) = (quantile(&offered.helped), quantile(&offered.direct));
        let added: Vec<f64> =
            helped.iter().zip(&direct).filter_map(|(helped, direct)| Some((*helped)? - (*direct)?)).collect();
        results.rows.push(row("helped", metric, "µs", &added).note("helped − direct, in the same round"));
    }
}

fn add_ratios(measured: &Measured, effort: &Effort, results: &mut Results) {
    let find = |protocol: ProtocolKind, part: &str, path: Path| {
        measured
            .series
            .iter()
            .find(|series| series.protocol == protocol && series.part == part && series.path == path)
    };
    for protocol in [ProtocolKind::Memcached, ProtocolKind::Redis] {
        if let (Some(shim), Some(plain)) =
            (find(protocol, "pairs", Path::Shim), find(protocol, "pairs", Path::Plain))
        {
            let pairs = paired_ratios(&shim.server_us(), &plain.server_us());
            let too_few = few(pairs.len(), "pairs", PAIRS_MIN);
            let name = format!("{protocol}_shim_over_plain");
            results.ratios.push(Ratio::new(&name, &pairs).void_if(too_few).note(SHIM_EXPECTED));
        }
        for &batch in &effort.mix_batches {
            let (Some(encrypted), Some(plain)) = (
                find(protocol, "links", Path::Batch(batch)),
                find(protocol, "links", Path::Unencrypted(batch)),
            ) else {
                continue;
            };
            let server =
                if protocol == ProtocolKind::Memcached { String::new() } else { format!("{protocol}_") };
            let name = format!("{server}encrypted_over_plain_links_{batch}");
            let expected = ENCRYPTED_EXPECTED.iter().find(|(size, _)| *size == batch);
            let ratio = Ratio::paired(&name, &encrypted.server_us(), &plain.server_us());
            let note = format!("{protocol}; {}", expected.map_or("", |(_, text)| text));
            results.ratios.push(ratio.note(note));
        }
        add_side_rows(measured, protocol, results);
        let Some(plain) = find(protocol, "batches", Path::Plain) else { continue };
        let alone = effort.mix_batches.iter().map(|&batch| (batch, Path::Alone(batch), "_alone"));
        let batches = effort.batches.iter().map(|&batch| (batch, Path::Batch(batch), ""));
        for (batch, path, suffix) in batches.chain(alone) {
            let Some(helped) = find(protocol, "batches", path) else { continue };
            let expected = EXPECTED.iter().find(|(server, size, _)| (*server, *size) == (protocol, batch));
            let expected = if suffix.is_empty() {
                expected.map_or("", |(_, _, text)| text)
            } else {
                "one link, one batch at a time, beside 200 plain clients"
            };
            let name = format!("{protocol}_direct_over_helped_{batch}{suffix}");
            let ratio = Ratio::paired(&name, &plain.server_us(), &helped.server_us());
            results.ratios.push(ratio.note(expected));
        }
    }
}

/// Adds rows with direct over helped cost for other requests, for which helping gains less or loses.
fn add_side_rows(measured: &Measured, protocol: ProtocolKind, results: &mut Results) {
    let mixes =
        || measured.series.iter().filter(move |series| series.protocol == protocol && series.part == "mixes");
    for helped in mixes().filter(|series| matches!(series.path, Path::Batch(_))) {
        let is_plain = |series: &&Series| {
            series.path == Path::Plain
                && (series.value_size, series.get_ratio) == (helped.value_size, helped.get_ratio)
        };
        let Some(plain) = mixes().find(is_plain) else { continue };
        let gains = paired_ratios(&plain.server_us(), &helped.server_us());
        let mut row = Row::new(&helped.path.name(), "direct_over_helped", "×", &gains)
            .param("server", protocol.to_string())
            .param("request", request_name(helped.get_ratio))
            .param("value_bytes", helped.value_size);
        if median(&gains).is_some_and(|gain| gain < 1.0) {
            row = row.note("helping loses here");
        }
        results.rows.push(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::batch::server_cost::Idle;
    use crate::goodput::Tally;
    use crate::machine::Machine;
    use crate::measure::Used;

    fn cost(server_us: f64) -> Cost {
        let used = Used { seconds: 1.0, server_process_s: server_us * 0.01, ..Used::default() };
        Cost { used, requests: 10_000, ..Cost::default() }
    }

    fn series(path: Path, part: &'static str, us: &[f64]) -> Series {
        let costs = us.iter().map(|&us| (us > 0.0).then(|| cost(us))).collect();
        let spoilt = us.iter().filter(|us| **us <= 0.0).map(|_| "a stall".to_owned()).collect();
        Series {
            protocol: ProtocolKind::Memcached,
            path,
            value_size: 64,
            get_ratio: 1.0,
            part,
            costs,
            spoilt,
        }
    }

    fn results_of(series: Vec<Series>) -> Results {
        let idle = Idle {
            protocol: ProtocolKind::Memcached,
            helper_percent: 0.2,
            shim_percent: 0.0625,
            plain_percent: 0.03125,
        };
        let mut measured = Measured {
            series,
            idle: vec![idle],
            tally: Tally::default(),
            driver_requests: 5,
            ..Measured::default()
        };
        let mut results = Results::new("server-cost", Machine::default());
        add_results(&mut measured, &Effort::full(), &mut results);
        results
    }

    #[test]
    fn ratios_compare_within_rounds_and_need_enough_of_them() {
        let mut shim = vec![5.1; 15];
        shim[3] = 0.0;
        let results = results_of(vec![
            series(Path::Plain, "pairs", &[5.0; 15]),
            series(Path::Shim, "pairs", &shim),
            series(Path::Plain, "batches", &[6.0; 5]),
            series(Path::Batch(200), "batches", &[0.5; 5]),
        ]);
        let ratio = |name: &str| results.ratios.iter().find(|r| r.name == name).unwrap();
        let shim = ratio("memcached_shim_over_plain");
        assert!(!shim.valid && shim.runs == 14 && shim.why.contains("14 pairs"), "{shim:?}");
        assert!((shim.upper95.unwrap() - 1.02).abs() < 1e-9);
        let helped = ratio("memcached_direct_over_helped_200");
        assert!(helped.valid && (helped.median.unwrap() - 12.0).abs() < 1e-9 && helped.why.contains("≥ 13"));
        let row = results
            .rows
            .iter()
            .find(|r| r.system == "direct, with shim" && r.metric == "server_cpu_us_per_request")
            .unwrap();
        assert!(row.runs == 14 && row.why.contains("1 of 15 measurements spoilt"), "{row:?}");
        let idle = results.rows.iter().find(|r| r.metric == "idle_shim_cpu_percent").unwrap();
        assert_eq!(idle.median, Some(0.03125));
        assert!(results.passed());
    }

    #[test]
    fn encryption_is_compared_within_rounds_of_the_same_batches() {
        let results = results_of(vec![
            series(Path::Batch(20), "batches", &[9.0; 5]),
            series(Path::Batch(20), "links", &[2.1; 15]),
            series(Path::Unencrypted(20), "links", &[2.0; 15]),
            series(Path::Batch(200), "links", &[0.5; 4]),
            series(Path::Unencrypted(200), "links", &[0.5; 4]),
        ]);
        let ratio = |name: &str| results.ratios.iter().find(|r| r.name == name).unwrap();
        let small = ratio("encrypted_over_plain_links_20");
        assert!(small.valid && (small.median.unwrap() - 1.05).abs() < 1e-9, "{small:?}");
        assert_eq!(small.why, "memcached; expected ≤ 1.10");
        let large = ratio("encrypted_over_plain_links_200");
        assert!(!large.valid && large.why.contains("4 rounds"), "{large:?}");
        let links = |system: &str| {
            let row = results.rows.iter().find(|row| row.system == system).unwrap();
            row.params["links"].as_str().unwrap().to_owned()
        };
        assert_eq!(links("batches of 20, links: 10"), "encrypted");
        assert_eq!(links("batches of 20, links: 10, not encrypted"), "not encrypted");
    }

    #[test]
    fn a_ratio_below_one_has_a_note() {
        let mut plain = series(Path::Plain, "mixes", &[10.0; 3]);
        let mut helped = series(Path::Batch(20), "mixes", &[12.0; 3]);
        (plain.value_size, helped.value_size) = (4096, 4096);
        let results = results_of(vec![plain, helped]);
        let row = results.rows.iter().find(|r| r.metric == "direct_over_helped").unwrap();
        assert!(row.why.contains("helping loses"), "{row:?}");
    }
}
