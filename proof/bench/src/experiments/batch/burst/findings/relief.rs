//! Rows of bursts that a helper relieved.

use crate::experiments::Options;
use crate::experiments::batch::burst::Measured;
use crate::measure::{Used, not_saturated};
use crate::relief::Span;
use crate::results::{Results, Row, left_out};
use crate::scenario::BurstRun;
use crate::stats::median;
use crate::table::us_to_ms;

/// Adds rows of the bursts that a helper relieved: times to move and to relieve, and costs of each phase.
pub(super) fn add_relief_rows(measured: &Measured, options: &Options, results: &mut Results) {
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
