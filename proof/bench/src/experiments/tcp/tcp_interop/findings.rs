//! Results of `tcp-interop` as rows, ratios and checks.

use super::{FaultRates, Series};
use crate::experiments::tcp::kernel_peer::{Measured, System, Work};
use crate::results::{Check, Ratio, Results, Row};

impl Series {
    fn row(&self, metric: &str, unit: &str, value: &dyn Fn(&Measured) -> Option<f64>) -> Row {
        let values: Vec<f64> = self.rounds.valid().filter_map(value).collect();
        let row = Row::new(self.system.name(), metric, unit, &values)
            .param("loss_percent", 100.0 * self.rates.loss)
            .param("reordering_percent", 100.0 * self.rates.reordering);
        match self.work {
            Work::Sending => row.param("direction", "sends"),
            Work::Receiving => row.param("direction", "receives"),
            Work::Answering => row.param("direction", "answers"),
        }
    }
}

pub(super) fn add_results(all: &[Series], results: &mut Results) {
    for series in all {
        add_rows(series, results);
    }
    add_ratios(all, results);
    add_checks(all, results);
}

fn add_rows(series: &Series, results: &mut Results) {
    let mut row = |metric: &str, unit: &str, value: &dyn Fn(&Measured) -> Option<f64>, note: &str| {
        results.rows.push(series.row(metric, unit, value).note(note));
    };
    if series.work == Work::Answering {
        row(
            "round_trips_per_s",
            "1/s",
            &|measured| Some(measured.round_trips_per_s()),
            "64 bytes, one at a time",
        );
        row("p50_us", "µs", &|measured| measured.quantile_us(0.5), "");
        row("p99_us", "µs", &|measured| measured.quantile_us(0.99), "");
    } else {
        row(
            "bulk_bytes_per_s",
            "B/s",
            &|measured| Some(measured.bytes_per_s),
            "as received by the application",
        );
        let note = match (series.system, series.work) {
            (System::Spillway, Work::Sending) => "of our payload",
            _ => "of the sending kernel's segments",
        };
        row("sent_again_percent", "%", &|measured| Some(100.0 * measured.sender.retransmitted_share), note);
        row("timeouts", "timeouts", &|measured| Some(measured.sender.timeouts), "of the sender");
    }
    row(
        "loop_percent",
        "% of a core",
        &|measured| Some(100.0 * measured.loop_share),
        "stack and application, or cable",
    );
}

fn add_ratios(all: &[Series], results: &mut Results) {
    let find = |system, like: &Series| {
        all.iter()
            .find(|series| series.system == system && series.work == like.work && series.rates == like.rates)
    };
    for spillway in all.iter().filter(|series| series.system == System::Spillway) {
        let Some(linux) = find(System::Linux, spillway) else { continue };
        let suffix = spillway.rates.suffix;
        let (name, value): (_, fn(&Measured) -> f64) = match spillway.work {
            Work::Sending => (format!("bulk_over_linux{suffix}"), |measured| measured.bytes_per_s),
            Work::Receiving => {
                (format!("bulk_over_linux{suffix}_receiving"), |measured| measured.bytes_per_s)
            }
            Work::Answering => (format!("round_trips_over_linux{suffix}"), Measured::round_trips_per_s),
        };
        let ratio = Ratio::paired(&name, &spillway.rounds.each(value), &linux.rounds.each(value));
        results.ratios.push(ratio.note(expected(spillway.work, &spillway.rates)));
    }
}

/// The note of a ratio, with the value expected before the first measurement.
fn expected(work: Work, rates: &FaultRates) -> &'static str {
    match (work, rates.suffix) {
        (Work::Sending, "") => "ours sends; expected ≥ 0.8; the kernels' path has a second interface in it",
        (Work::Sending, "_loss1") => "ours sends; expected ≥ 1.0",
        (Work::Sending, _) => "ours sends",
        (Work::Receiving, "_loss1") => "ours receives from Linux, over Linux receiving; expected ≥ 1.5",
        (Work::Receiving, "_loss3") => "ours receives from Linux, over Linux receiving; expected ≥ 1.3",
        (Work::Receiving, _) => "the peer's kernel sends in both: ours only receives and acknowledges",
        (Work::Answering, _) => "round trips a second; two wake-ups of ours, four of the kernels' path",
    }
}

fn add_checks(all: &[Series], results: &mut Results) {
    let measurements = || all.iter().flat_map(|series| series.rounds.valid());
    let (wrong, bytes) = (
        measurements().map(|measured| measured.wrong).sum(),
        measurements().map(|measured| measured.bytes).sum::<u64>(),
    );
    let detail = format!("{bytes} bytes, each compared, from the first to the last");
    results.checks.push(Check::none("wrong", wrong, &detail));
    let trouble = measurements().map(|measured| measured.trouble).sum();
    results.checks.push(Check::none(
        "trouble",
        trouble,
        "connections given up or reset, or frames that were malformed",
    ));
    let faults = |is_faulty: bool| {
        let runs = all
            .iter()
            .filter(move |series| series.rates.suffix.is_empty() != is_faulty)
            .flat_map(|series| series.rounds.valid());
        runs.map(|measured| measured.faulted.lost + measured.faulted.reordered).sum::<u64>()
    };
    let (lost_with_faults, lost_without) = (faults(true), faults(false));
    let has_faulty_series = all.iter().any(|series| !series.rates.suffix.is_empty());
    let detail = format!(
        "{lost_with_faults} frames lost or out of order in runs with faults, {lost_without} in runs without"
    );
    results.checks.push(Check::new(
        "faults_as_asked",
        lost_without == 0 && (lost_with_faults > 0 || !has_faulty_series),
        detail,
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::common::rounds::Rounds;
    use crate::machine::Machine;
    use spillway_xdp::Faulted;

    fn series(system: System, work: Work, suffix: &'static str, speed: f64, lost: u64) -> Series {
        let rates = FaultRates { suffix, loss: if suffix.is_empty() { 0.0 } else { 0.01 }, reordering: 0.0 };
        let measured = Measured {
            bytes_per_s: speed,
            bytes: 1_000,
            latencies_ns: vec![(1e9 / speed) as u64; 100],
            faulted: Faulted { lost, ..Faulted::default() },
            ..Measured::default()
        };
        Series { system, work, rates, rounds: Rounds::from_iter((0..5).map(|_| Some(measured.clone()))) }
    }

    #[test]
    fn each_work_with_each_fault_rate_has_a_ratio() {
        let all = [
            series(System::Spillway, Work::Sending, "", 300.0, 0),
            series(System::Linux, Work::Sending, "", 200.0, 0),
            series(System::Spillway, Work::Sending, "_loss1", 10.0, 3),
            series(System::Linux, Work::Sending, "_loss1", 40.0, 3),
            series(System::Spillway, Work::Answering, "", 50_000.0, 0),
            series(System::Linux, Work::Answering, "", 25_000.0, 0),
            series(System::Spillway, Work::Receiving, "_loss1", 120.0, 3),
            series(System::Linux, Work::Receiving, "_loss1", 60.0, 3),
        ];
        let mut results = Results::new("tcp-interop", Machine::default());
        add_results(&all, &mut results);
        let ratio = |name: &str| results.ratios.iter().find(|r| r.name == name).and_then(|r| r.median);
        assert_eq!(ratio("bulk_over_linux"), Some(1.5));
        assert_eq!(ratio("bulk_over_linux_loss1"), Some(0.25));
        assert_eq!(ratio("round_trips_over_linux"), Some(2.0));
        assert_eq!(ratio("bulk_over_linux_loss1_receiving"), Some(2.0));
        assert_eq!(results.ratios.len(), 4);
        assert!(results.passed(), "{:?}", results.checks);
    }

    #[test]
    fn unexpected_loss_and_wrong_bytes_fail_a_check() {
        for (lost, wrong) in [(1, 0), (0, 1)] {
            let mut series = series(System::Linux, Work::Sending, "", 200.0, lost);
            series.rounds.push((Measured { wrong, ..Measured::default() }, None));
            let mut results = Results::new("tcp-interop", Machine::default());
            add_results(&[series], &mut results);
            assert!(!results.passed());
        }
    }
}
