//! Rows that compare data migration with a helper.

use crate::experiments::batch::burst::Measured;
use crate::experiments::batch::burst::rivals::{BURST_TIMES, COPIED_BYTES, Migration};
use crate::relief::Span;
use crate::results::{Results, Row, left_out};
use crate::table::us_to_ms;

/// Adds rows that compare bursts relieved by copying data to another server with bursts relieved by a helper.
pub(super) fn add_migration_rows(measured: &Measured, results: &mut Results) {
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
