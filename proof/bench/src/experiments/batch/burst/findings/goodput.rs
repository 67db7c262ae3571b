//! Rows of goodput, and of the costs of a request at that rate.

use super::early_ends::{lower_bound, void_reasons};
use crate::experiments::batch::burst::Series;
use crate::measure::Step;
use crate::results::{Results, Row};
use crate::scene::System;
use crate::table::us_to_ms;

/// Adds one system's goodput, and the costs of a request at that rate.
pub(super) fn add_goodput_rows(series: &Series, results: &mut Results) {
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
