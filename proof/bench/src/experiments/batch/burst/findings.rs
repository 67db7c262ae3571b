//! Results of `burst` as rows, ratios and checks.

use super::rivals::{BURST_TIMES, COPIED_BYTES, Migration};
use super::{Measured, PAPER_SLA_US, ROUNDS, ROUNDS_QUICK, Series};
use crate::experiments::Options;
use crate::goodput::RampResult;
use crate::measure::{Step, Used, not_saturated};
use crate::relief::Span;
use crate::results::{Check, Ratio, Results, Row, left_out};
use crate::scenario::BurstRun;
use crate::scene::System;
use crate::stats::{median, paired_ratios};

pub(super) fn add_results(measured: &Measured, options: &Options, results: &mut Results) {
    for series in &measured.series {
        add_goodput_rows(series, results);
    }
    add_ratios(measured, results);
    add_relief_rows(measured, options, results);
    add_rival_ratios(measured, results);
    add_migration_rows(measured, results);
    results.checks = measured.tally.checks();
    let unmoved = measured.burst_runs.iter().filter(|run| run.moved_ms().is_none()).count();
    results.checks.push(Check::none(
        "all_moved",
        unmoved as u64,
        &format!("{} bursts left clients unmoved", measured.burst_runs.len()),
    ));
    if measured.quick {
        let quick = format!("--quick: {ROUNDS_QUICK} rounds instead of {ROUNDS}");
        results.machine.lab.insert("quick".into(), quick.clone());
        results.ratios.iter_mut().for_each(|ratio| *ratio = ratio.clone().void_if([&quick]));
    }
    for note in measured.calibration.notes.iter().chain(&measured.left_out) {
        results.machine.lab.insert(format!("note {}", results.machine.lab.len()), note.clone());
    }
}

fn us_to_ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

/// Adds one system's goodput, and the costs of a request at that rate.
fn add_goodput_rows(series: &Series, results: &mut Results) {
    let row = |metric: &str, unit: &str, values: &[f64]| {
        let row = Row::new(series.system.name(), metric, unit, values)
            .param("sla_ms", us_to_ms(series.sla_us))
            .param("server_limit", if series.has_burner { "burner" } else { "quota" });
        let row = match series.iso_percent {
            Some(percent) => {
                row.param("iso_cpu_percent", percent).note("no helper: its CPU time is added to the quota")
            }
            None => row,
        };
        let row = match series.system {
            System::Helped => row.param("max_delay_us", series.max_delay.as_micros() as u64),
            System::Plain | System::Shimmed | System::Nutcracker => row,
        };
        if series.is_repetition { row.param("again", true) } else { row }
    };
    let goodputs: Vec<f64> = series.goodputs().into_iter().flatten().collect();
    results.rows.push(
        row("goodput", "requests/s", &goodputs).void_if(void_reasons(series)).note(lower_bound(series)),
    );
    let best_steps: Vec<&Step> =
        series.rounds.iter().flatten().filter_map(|ramped| ramped.best.as_ref()).collect();
    let values_of = |value: fn(&Step) -> Option<f64>| {
        best_steps.iter().filter_map(|step| value(step)).collect::<Vec<_>>()
    };
    if series.is_repetition || best_steps.is_empty() {
        return;
    }
    for host in ["server", "helper", "clients", "bridge"] {
        let host_us = |step: &&Step| {
            let costs = step.used.us_per_request(step.span.served);
            costs.into_iter().find(|(name, _)| *name == host).map(|(_, us)| us)
        };
        let values: Vec<f64> = best_steps.iter().filter_map(host_us).collect();
        results
            .rows
            .push(row("total_cpu_us_per_request", "µs", &values).param("host", host).param("at", "goodput"));
    }
    results.rows.push(row(
        "server_interface_share",
        "%",
        &values_of(|step| Some(100.0 * step.used.interface_share())),
    ));
    results.rows.push(row("server_cpu", "% of a core", &values_of(|step| Some(step.used.server_percent()))));
    results.rows.push(row(
        "nr_throttled",
        "periods/s",
        &values_of(|step| Some(step.used.throttled as f64 / step.used.seconds)),
    ));
    results.rows.push(row("clients_lag_p99_us", "µs", &values_of(|step| Some(step.lag_p99_us as f64))));
    results.rows.push(row(
        "clients_cpu",
        "% of a core",
        &values_of(|step| Some(step.used.percent(step.used.clients_s))),
    ));
    if matches!(series.system, System::Helped | System::Nutcracker) {
        results.rows.push(row(
            "helper_cpu",
            "% of a core",
            &values_of(|step| Some(step.used.percent(step.used.helper_s))),
        ));
    }
    if series.system == System::Helped {
        results.rows.push(row(
            "messages_per_batch",
            "messages",
            &values_of(|step| step.used.messages_per_batch()),
        ));
        let saturated = series.rounds.iter().flatten().filter_map(|ramped| ramped.saturated.as_ref());
        let throughput: Vec<f64> = saturated.map(|step| step.replies_per_s).collect();
        if !throughput.is_empty() {
            results.rows.push(row("throughput", "replies/s", &throughput).note("late replies included"));
        }
    }
}

/// Reasons why a series' goodput is void; none for a helped series. A ramp that ended early yields a lower bound of
/// the goodput. A denominator that is too small makes a ratio too large, so the series of other systems are void.
/// A numerator that is too small makes a ratio too small, so a helped series stays valid.
fn void_reasons(series: &Series) -> Vec<String> {
    if series.system == System::Helped { Vec::new() } else { early_ends(series) }
}

/// The note of a helped series of which a ramp ended early; empty otherwise.
fn lower_bound(series: &Series) -> String {
    match early_ends(series) {
        reasons if series.system == System::Helped && !reasons.is_empty() => {
            format!("a lower bound: {}", reasons.join("; "))
        }
        _ => String::new(),
    }
}

/// Round and reason of each ramp that ended before it reached a rate at which the system broke the SLA.
fn early_ends(series: &Series) -> Vec<String> {
    let round = |(n, ramped): (usize, &Option<RampResult>)| {
        ramped.as_ref()?.trouble.as_ref().map(|trouble| format!("round {}: {trouble}", n + 1))
    };
    series.rounds.iter().enumerate().filter_map(round).collect()
}

/// A note: the expected ratio of helped to direct goodput, and the paper's. `prefix` is that of the ratios' names and
/// states the configuration: `xdp_` with the user-level TCP stack, `core_` with a whole core for the server too.
fn expectation(prefix: &str, sla_us: u64) -> &'static str {
    match (prefix, sla_us == PAPER_SLA_US) {
        ("", true) => "expected ≥ 3.3, as in the paper",
        ("", false) => "expected ≥ 5, paper 3.3",
        ("xdp_", true) => "expected ≥ 3.3, as in the paper",
        ("xdp_", false) => "expected ≥ 8, paper 3.3",
        ("core_", true) => "expected ≥ 5, paper 3.3",
        ("core_", false) => "expected ≥ 8, paper 3.3",
        _ => "paper 3.3",
    }
}

/// Adds the ratio of helped to direct goodput for each SLA and each limit of the server's CPU (quota or burner), and
/// the A/A ratio: two series of the direct system, measured in the same rounds.
fn add_ratios(measured: &Measured, results: &mut Results) {
    let find = |system: System, sla_us: u64, has_burner: bool, is_repetition: bool| {
        measured.series.iter().filter(|series| series.iso_percent.is_none()).find(|series| {
            (series.system, series.sla_us, series.has_burner, series.is_repetition)
                == (system, sla_us, has_burner, is_repetition)
        })
    };
    for helped in measured.series.iter().filter(|series| series.system == System::Helped) {
        let direct = [System::Plain, System::Shimmed];
        let direct =
            direct.into_iter().filter_map(|system| find(system, helped.sla_us, helped.has_burner, false));
        let better = direct
            .filter(|series| series.median().is_some())
            .max_by(|a, b| a.median().partial_cmp(&b.median()).unwrap_or(std::cmp::Ordering::Equal));
        let Some(better) = better else { continue };
        let rounds = paired_ratios(&helped.goodputs(), &better.goodputs());
        let is_main_sla = helped.sla_us == measured.calibration.sla_us;
        let name = match (helped.has_burner, is_main_sla) {
            (true, _) => "goodput_helped_over_direct_burner".to_owned(),
            (false, true) => "goodput_helped_over_direct".to_owned(),
            (false, false) => format!("goodput_helped_over_direct_at_{}us", helped.sla_us),
        };
        let name = format!("{}{name}", measured.prefix);
        let target = expectation(&measured.prefix, helped.sla_us);
        let mut ratio = Ratio::new(&name, &rounds)
            .void_if(void_reasons(better))
            .note(format!("SLA {} ms; against {}; {target}", us_to_ms(helped.sla_us), better.system.name()))
            .note(lower_bound(helped));
        if let (true, Some(percent)) = (helped.has_burner, measured.burnt_percent) {
            ratio = ratio.note(format!(
                "the burner took {percent:.1} % of the server's core; helper and clients shared the other"
            ));
        }
        results.ratios.push(ratio);
    }
    let sla_us = measured.calibration.sla_us;
    if let (Some(first), Some(repetition)) =
        (find(System::Plain, sla_us, false, false), find(System::Plain, sla_us, false, true))
    {
        let rounds = paired_ratios(&repetition.goodputs(), &first.goodputs());
        results.ratios.push(
            Ratio::new(&format!("{}goodput_direct_over_itself", measured.prefix), &rounds)
                .note("A/A: the difference without any change"),
        );
    }
}

/// Adds the ratios of the helped goodput to the goodput of two alternatives, under the calibrated SLA: nutcracker as
/// the proxy, and no proxy but the helper's CPU time for the server (iso-CPU).
fn add_rival_ratios(measured: &Measured, results: &mut Results) {
    let sla_us = measured.calibration.sla_us;
    let main = || {
        measured
            .series
            .iter()
            .filter(move |series| series.sla_us == sla_us && !series.has_burner && !series.is_repetition)
    };
    let Some(helped) = main().find(|series| series.system == System::Helped) else { return };
    let nutcracker = main().find(|series| series.system == System::Nutcracker).map(|series| {
        (
            "goodput_helped_over_nutcracker",
            series,
            "nutcracker in the helper's place, one connection to the server".into(),
        )
    });
    let iso = main().find_map(|series| Some((series, series.iso_percent?))).map(|(series, percent)| {
        let note =
            format!("no helper: its CPU time is added to the quota, {percent:.0} % of a core; measured last");
        ("goodput_helped_over_iso_cpu", series, note)
    });
    for (name, rival, note) in nutcracker.into_iter().chain(iso) {
        let rounds = paired_ratios(&helped.goodputs(), &rival.goodputs());
        let ratio = Ratio::new(&format!("{}{name}", measured.prefix), &rounds)
            .void_if(void_reasons(rival))
            .note(note)
            .note(lower_bound(helped));
        results.ratios.push(ratio.note(format!("SLA {} ms", us_to_ms(sla_us))));
    }
}

/// Adds rows that compare bursts relieved by copying data to another server with bursts relieved by a helper.
fn add_migration_rows(measured: &Measured, results: &mut Results) {
    if measured.migrations.is_empty() {
        return;
    }
    for (helped, system) in [(false, "data migration"), (true, "helped")] {
        let runs = || measured.migrations.iter().filter(move |run| run.helped == helped);
        let reasons: Vec<String> =
            runs().filter(|run| !run.spoilt.is_empty()).map(|run| run.spoilt.join(", ")).collect();
        let note = left_out(&reasons, runs().count());
        let valid = || runs().filter(|run| run.spoilt.is_empty());
        let row = |metric: &str, unit: &str, values: Vec<f64>| {
            Row::new(system, metric, unit, &values)
                .param("burst_over_capacity", BURST_TIMES)
                .param("sla_ms", us_to_ms(measured.calibration.sla_us))
                .note(&note)
        };
        let unrelieved = valid().filter(|run| run.relief_ms.is_none()).count();
        let unrelieved = (unrelieved > 0)
            .then(|| format!("{unrelieved} of {} runs not relieved in time", valid().count()));
        let relief = valid().filter_map(|run| run.relief_ms).map(|ms| ms as f64).collect();
        results.rows.push(row("relief_ms", "ms", relief).void_if(unrelieved));
        let p99 = |span: fn(&Migration) -> &Span| {
            valid().filter_map(|run| span(run).p99_us()).map(us_to_ms).collect()
        };
        results.rows.push(row("p99_ms", "ms", p99(|run| &run.before)).param("phase", "overload"));
        results.rows.push(
            row("p99_ms", "ms", p99(|run| &run.during))
                .param("phase", "after the decision, for as long as a copy takes"),
        );
        if !helped {
            let copied: Vec<f64> = valid().filter_map(|run| run.copy_ms).collect();
            let volume = COPIED_BYTES as f64 / 1e6;
            let rates = copied.iter().map(|ms| volume / (ms / 1000.0)).collect();
            results.rows.push(row("copy_ms", "ms", copied).param("copied_mb", volume).note(
                "the paper copies 6.4 GB in 13 s; volume and server CPU are 1/160 here; \
                 half of the clients leave when the copy ends",
            ));
            results.rows.push(row("copy_rate", "MB/s", rates).param("copied_mb", volume));
        }
    }
}

/// Adds rows of the bursts that a helper relieved: times to move and to relieve, and costs of each phase.
fn add_relief_rows(measured: &Measured, options: &Options, results: &mut Results) {
    let quota = measured.calibration.quota.or(options.setting.quota);
    let (valid, spoilt): (Vec<&BurstRun>, Vec<&BurstRun>) =
        measured.burst_runs.iter().partition(|run| run.spoilt(quota).is_empty());
    let reasons: Vec<String> = spoilt.iter().map(|run| run.spoilt(quota).join(", ")).collect();
    let spoilt_note = left_out(&reasons, measured.burst_runs.len());
    // In each run, a few probing clients stay on the direct port while the helper serves all others.
    let probed = measured.burst_runs.iter().zip(&measured.probed);
    let probed = probed.filter(|(run, _)| run.spoilt(quota).is_empty()).map(|(_, span)| span);
    let unanswered = probed.clone().filter(|span| span.p99_us().is_none()).count();
    let unanswered = (unanswered > 0).then(|| format!("more than 1 % unanswered in {unanswered} runs"));
    let p99s: Vec<f64> = probed.filter_map(Span::p99_us).map(us_to_ms).collect();
    results.rows.push(
        Row::new("direct, with shim", "direct_p99_while_helped", "ms", &p99s)
            .param("sla_ms", us_to_ms(measured.calibration.sla_us))
            .param("phase", "burst")
            .void_if(unanswered)
            .note("expected ≤ SLA")
            .note(&spoilt_note),
    );
    let helped_per_s = helped_throughput(measured);
    let row = |metric: &str, values: Vec<f64>| {
        Row::new("helped", metric, "ms", &values)
            .param("connections", options.setting.connections)
            .param("sla_ms", us_to_ms(measured.calibration.sla_us))
            .note(&spoilt_note)
    };
    let values_of = |value: &dyn Fn(&BurstRun) -> Option<f64>| {
        valid.iter().filter_map(|run| value(run)).collect::<Vec<_>>()
    };
    let floor = |run: &BurstRun| run.drain_floor_ms(helped_per_s?);
    let relief = |run: &BurstRun| run.relief_ms().map(|ms| ms as f64);
    results.rows.push(row("moved_ms", values_of(&BurstRun::moved_ms)).note("expected ≤ 150, paper 550"));
    let unrelieved = valid.iter().filter(|run| run.relief_ms().is_none()).count();
    let unrelieved = (unrelieved > 0)
        .then(|| format!("{unrelieved} of {} runs not relieved before the burst was over", valid.len()));
    results
        .rows
        .push(row("relief_ms", values_of(&relief)).void_if(unrelieved).note("expected ≤ drain floor + 350"));
    results.rows.push(row("drain_floor_ms", values_of(&floor)));
    results.rows.push(
        row("relief_over_floor_ms", values_of(&|run| Some(relief(run)? - floor(run)?)))
            .note("expected ≤ 350"),
    );

    type Window = fn(&BurstRun) -> (u64, u64);
    let phases: [(&str, &str, Window); 3] = [
        ("direct, with shim", "light load", BurstRun::light),
        ("direct, with shim", "burst", BurstRun::overloaded),
        ("helped", "burst", BurstRun::relieved),
    ];
    for (system, phase, window) in phases {
        let costs = |run: &&BurstRun| -> (Used, u64) {
            let (from_ms, to_ms) = window(run);
            run.between(from_ms, to_ms)
        };
        let costs: Vec<(Used, u64)> =
            valid.iter().map(costs).filter(|(used, _)| used.seconds > 0.0).collect();
        let row = |metric: &str, unit: &str, values: &[f64]| {
            Row::new(system, metric, unit, values).param("phase", phase)
        };
        for (n, host) in ["server", "helper", "clients", "bridge"].into_iter().enumerate() {
            let values: Vec<f64> =
                costs.iter().map(|(used, replies)| used.us_per_request(*replies)[n].1).collect();
            results.rows.push(row("total_cpu_us_per_request", "µs", &values).param("host", host));
        }
        let p99s: Vec<f64> =
            valid.iter().filter_map(|run| run.span(window(run)).p99_us()).map(us_to_ms).collect();
        results.rows.push(row("p99_ms", "ms", &p99s));
        if phase == "burst" {
            let rates: Vec<f64> =
                costs.iter().map(|(used, replies)| *replies as f64 / used.seconds).collect();
            results.rows.push(row("throughput", "replies/s", &rates));
            let shares: Vec<f64> = costs
                .iter()
                .filter_map(|(used, _)| used.quota_share(quota))
                .map(|share| 100.0 * share)
                .collect();
            let unsaturated =
                costs.iter().filter_map(|(used, _)| not_saturated(used, quota)).collect::<Vec<_>>();
            let saturated = row("server_cpu_of_quota", "%", &shares);
            results.rows.push(if system == "helped" { saturated } else { saturated.void_if(unsaturated) });
            let throttled: Vec<f64> =
                costs.iter().map(|(used, _)| used.throttled as f64 / used.seconds).collect();
            results.rows.push(row("nr_throttled", "periods/s", &throttled));
            let interface: Vec<f64> = costs.iter().map(|(used, _)| 100.0 * used.interface_share()).collect();
            results.rows.push(row("server_interface_share", "%", &interface));
        }
    }
}

/// Median throughput of the saturated helped server, in replies/s; `None` if no ramp measured it.
fn helped_throughput(measured: &Measured) -> Option<f64> {
    let rounds = measured.series.iter().flat_map(|series| series.rounds.iter().flatten());
    let saturated: Vec<f64> =
        rounds.filter_map(|ramped| ramped.saturated.as_ref()).map(|step| step.replies_per_s).collect();
    median(&saturated)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::calibrate::Calibration;
    use crate::goodput::Tally;
    use crate::machine::Machine;
    use crate::programs::Programs;
    use crate::ramp::Goodput;
    use crate::scene::Setting;
    use std::path::Path;

    fn series(system: System, goodputs: &[f64]) -> Series {
        let round = |&kept: &f64| {
            Some(RampResult {
                goodput: Goodput { kept_per_s: Some(kept), failed_per_s: Some(kept * 1.05) },
                best: Some(Step {
                    used: Used { seconds: 2.0, server_process_s: 0.2, ..Used::default() },
                    ..Step::default()
                }),
                ..RampResult::default()
            })
        };
        Series {
            system,
            sla_us: 1_000,
            max_delay: Duration::from_micros(300),
            has_burner: false,
            is_repetition: false,
            iso_percent: None,
            rounds: goodputs.iter().map(round).collect(),
        }
    }

    fn measured(series: Vec<Series>) -> Measured {
        Measured {
            prefix: String::new(),
            quick: false,
            calibration: Calibration { direct_per_s: 3_000.0, sla_us: 1_000, ..Calibration::default() },
            series,
            burst_runs: Vec::new(),
            probed: Vec::new(),
            migrations: Vec::new(),
            burnt_percent: None,
            left_out: Vec::new(),
            tally: Tally::default(),
        }
    }

    fn results_of(measured: &Measured) -> Results {
        let mut results = Results::new("burst", Machine::default());
        let options = Options {
            quick: measured.quick,
            only: Vec::new(),
            setting: Setting::new(Programs::in_directory(Path::new(""))),
        };
        add_results(measured, &options, &mut results);
        results
    }

    #[test]
    fn helped_is_compared_with_the_better_direct_system_round_by_round() {
        let results = results_of(&measured(vec![
            series(System::Plain, &[3_000.0; 5]),
            series(System::Shimmed, &[2_000.0, 4_000.0, 4_000.0, 4_000.0, 4_000.0]),
            series(System::Helped, &[16_000.0; 5]),
        ]));
        let ratio = &results.ratios[0];
        assert_eq!(ratio.name, "goodput_helped_over_direct");
        assert_eq!((ratio.median, ratio.min, ratio.max), (Some(4.0), Some(4.0), Some(8.0)));
        assert_eq!((ratio.valid, ratio.upper95), (true, Some(8.0)));
        assert!(ratio.why.contains("against direct, with shim"), "{}", ratio.why);
    }

    #[test]
    fn a_direct_ramp_that_ended_early_voids_the_ratio_and_a_helped_one_does_not() {
        let mut helped = series(System::Helped, &[16_000.0; 5]);
        helped.rounds[1].as_mut().unwrap().trouble = Some("the helper used 81 % of a core".into());
        let early_helped = measured(vec![series(System::Plain, &[3_000.0; 5]), helped]);
        let results = results_of(&early_helped);
        assert!(results.ratios[0].valid && results.ratios[0].why.contains("lower bound: round 2"));

        let mut plain = series(System::Plain, &[3_000.0; 5]);
        plain.rounds[0].as_mut().unwrap().trouble = Some("the clients lagged".into());
        let results = results_of(&measured(vec![plain, series(System::Helped, &[16_000.0; 5])]));
        assert!(!results.ratios[0].valid && results.ratios[0].why.contains("round 1: the clients lagged"));
        let goodput = results.rows.iter().find(|row| row.metric == "goodput").unwrap();
        assert!(!goodput.valid);
    }

    #[test]
    fn ratios_of_a_quick_run_are_void() {
        let mut quick =
            measured(vec![series(System::Plain, &[3_000.0; 2]), series(System::Helped, &[16_000.0; 2])]);
        quick.quick = true;
        let results = results_of(&quick);
        assert!(!results.ratios[0].valid && results.ratios[0].why.contains("--quick"));
        assert_eq!(results.ratios[0].upper95, None);
        assert!(results.machine.lab["quick"].contains("2 rounds instead of 5"));
        assert!(results.passed());
    }

    #[test]
    fn all_required_rows_are_present() {
        let results = results_of(&measured(vec![
            series(System::Plain, &[3_000.0]),
            series(System::Helped, &[16_000.0]),
        ]));
        for metric in
            ["goodput", "moved_ms", "relief_ms", "drain_floor_ms", "total_cpu_us_per_request", "nr_throttled"]
        {
            assert!(results.rows.iter().any(|row| row.metric == metric), "{metric}");
        }
        let moved = results.rows.iter().find(|row| row.metric == "moved_ms").unwrap();
        assert!(!moved.valid, "without a burst there is no time to move");
    }

    #[test]
    fn ratios_of_the_helped_server_to_its_rivals_are_added() {
        let mut iso = series(System::Plain, &[8_000.0; 5]);
        iso.iso_percent = Some(42.0);
        let results = results_of(&measured(vec![
            iso,
            series(System::Plain, &[3_000.0; 5]),
            series(System::Helped, &[16_000.0; 5]),
            series(System::Nutcracker, &[4_000.0; 5]),
        ]));
        let median = |name: &str| results.ratios.iter().find(|ratio| ratio.name == name).unwrap().median;
        assert_eq!(median("goodput_helped_over_direct"), Some(16.0 / 3.0));
        assert_eq!(median("goodput_helped_over_nutcracker"), Some(4.0));
        assert_eq!(median("goodput_helped_over_iso_cpu"), Some(2.0));
        assert!(results.rows.iter().any(|row| row.params.contains_key("iso_cpu_percent")));
    }

    #[test]
    fn migrations_are_reported_with_their_volume() {
        let mut all = measured(vec![series(System::Plain, &[3_000.0; 5])]);
        let copied = Migration { copy_ms: Some(2_000.0), relief_ms: Some(2_400), ..Migration::default() };
        let never = Migration { relief_ms: None, ..copied.clone() };
        let spoilt = Migration { spoilt: vec!["a stall".into()], ..copied.clone() };
        all.migrations = vec![copied, never, spoilt, Migration { helped: true, ..Migration::default() }];
        let results = results_of(&all);
        let row = |metric: &str| {
            results.rows.iter().find(|r| r.system == "data migration" && r.metric == metric).unwrap()
        };
        assert_eq!((row("copy_ms").median, row("copy_ms").runs), (Some(2_000.0), 2));
        assert_eq!(
            (row("copy_rate").median, row("copy_rate").params["copied_mb"].as_f64()),
            (Some(20.0), Some(40.0))
        );
        let relief = row("relief_ms");
        assert!(
            !relief.valid
                && relief.why.contains("1 of 2 runs not relieved")
                && relief.why.contains("a stall")
        );
    }
}
