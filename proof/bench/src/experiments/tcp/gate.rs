//! Effects of a gate on a Linux peer. A stack with a gate acknowledges bytes a fixed time after their
//! arrival, like a helper that waits for its server's acknowledgement. Measures bulk throughput, and round
//! trips with answers at once or with the acknowledgement. No frame is lost, so every retransmission of the
//! peer is spurious. Every byte is compared.

use std::io::Write;
use std::time::Duration;

use spillway_xdp::FaultsOptions;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{Rounds, measurement_order, print_line};
use crate::experiments::tcp::kernel_peer::{Gate, Measured, Plan, Site, System, Work};
use crate::results::{Check, Ratio, Results, Row};
use crate::scene::Setting;

/// Delays between the arrival of a byte and its acknowledgement, in ms.
const GATES_MS: [u64; 6] = [0, 1, 10, 50, 200, 500];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    Bulk,
    /// The peer sends requests, and gets answers before the acknowledgement.
    AnsweredAtOnce,
    /// The peer sends requests, and gets answers with the acknowledgement.
    AnsweredAtTheGate,
}

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Number of rounds.
    pub rounds: usize,
    /// Delays of the gates, in ms.
    pub gates_ms: Vec<u64>,
    /// Least length of a measurement.
    pub length: Duration,
    /// Least length of a bulk measurement, as a multiple of the delay.
    pub bulk_gates: u32,
    /// Least length of a measurement of round trips, as a multiple of the delay.
    pub message_gates: u32,
}

impl Effort {
    /// The effort of a complete run, whose figures may be published.
    pub fn full() -> Effort {
        Effort {
            rounds: 7,
            gates_ms: GATES_MS.to_vec(),
            length: Duration::from_secs(2),
            bulk_gates: 16,
            message_gates: 8,
        }
    }

    /// The effort of a quick run: about two minutes.
    pub fn quick() -> Effort {
        Effort {
            rounds: 3,
            length: Duration::from_millis(400),
            bulk_gates: 12,
            message_gates: 4,
            ..Effort::full()
        }
    }
}

#[derive(Clone, Debug)]
struct Series {
    traffic: Traffic,
    gate_ms: u64,
    rounds: Rounds<Measured>,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let mut site = Site::create("gate", setting)?;
    let mut machine = site.machine()?;
    machine.lab.retain(|name, _| name != "path, linux");
    let mut all = Vec::new();
    for traffic in [Traffic::Bulk, Traffic::AnsweredAtOnce, Traffic::AnsweredAtTheGate] {
        all.extend(effort.gates_ms.iter().map(|&gate_ms| Series {
            traffic,
            gate_ms,
            rounds: Rounds::default(),
        }));
    }
    let outcome = measurement_order(effort.rounds, all.len()).try_for_each(|(round, index)| {
        let measured = site.measure(&all[index].plan(effort))?;
        print_round(out, round, &all[index], &measured);
        all[index].rounds.push((measured, None));
        Ok(())
    });
    let outcome = outcome.and_then(|()| site.close());
    let mut results = Results::new("gate", machine);
    all.iter().for_each(|series| add_rows(series, &mut results));
    add_ratios(&all, &mut results);
    add_checks(&all, &mut results);
    Ok(results.with_outcome(outcome))
}

impl Series {
    fn delay(&self) -> Duration {
        Duration::from_millis(self.gate_ms)
    }

    fn plan(&self, effort: &Effort) -> Plan {
        let gates = if self.traffic == Traffic::Bulk { effort.bulk_gates } else { effort.message_gates };
        let replies_wait = self.traffic == Traffic::AnsweredAtTheGate;
        Plan {
            system: System::Spillway,
            work: if self.traffic == Traffic::Bulk { Work::Receiving } else { Work::Answering },
            faults: FaultsOptions::default(),
            gate: Some(Gate { delay: self.delay(), replies_wait }),
            length: effort.length.max(gates * self.delay()),
        }
    }

    fn traffic_name(&self) -> &'static str {
        match self.traffic {
            Traffic::Bulk => "bulk",
            Traffic::AnsweredAtOnce => "answered at once",
            Traffic::AnsweredAtTheGate => "answered at the gate",
        }
    }
}

fn add_rows(series: &Series, results: &mut Results) {
    let mut row = |metric: &str, unit: &str, value: &dyn Fn(&Measured) -> Option<f64>, note: &str| {
        let values: Vec<f64> = series.rounds.valid().filter_map(value).collect();
        let row = Row::new("spillway", metric, unit, &values)
            .param("gate_ms", series.gate_ms)
            .param("traffic", series.traffic_name());
        results.rows.push(row.note(note));
    };
    if series.traffic == Traffic::Bulk {
        row(
            "bulk_bytes_per_s",
            "B/s",
            &|measured| Some(measured.bytes_per_s),
            "from the first byte on, slow start included",
        );
        row(
            "bulk_late_bytes_per_s",
            "B/s",
            &|measured| Some(measured.late_bytes_per_s),
            "in the second half, when the window limits",
        );
    } else {
        row(
            "round_trips_per_s",
            "1/s",
            &|measured| Some(measured.round_trips_per_s()),
            "64 bytes, one at a time",
        );
        row("p50_us", "µs", &|measured| measured.quantile_us(0.5), "");
        row("p99_us", "µs", &|measured| measured.quantile_us(0.99), "");
        row("max_us", "µs", &|measured| measured.quantile_us(1.0), "");
    }
    let count =
        |name: &'static str| move |measured: &Measured| measured.peer.get(name).map(|count| *count as f64);
    row(
        "sent_again_percent",
        "%",
        &|measured| Some(100.0 * measured.sender.retransmitted_share),
        "of the peer's segments; all are spurious",
    );
    row("sent_again", "segments", &count("retransmissions"), "over a whole connection");
    row("timeouts", "of the peer", &count("timeouts"), "over a whole connection");
    row("tail_loss_probes", "of the peer", &count("probes"), "over a whole connection");
    row("found_spurious", "of the peer", &count("spurious"), "timeouts that the peer found to be spurious");
}

fn add_ratios(all: &[Series], results: &mut Results) {
    let bulk =
        |gate_ms| all.iter().find(|series| series.traffic == Traffic::Bulk && series.gate_ms == gate_ms);
    let Some(without_delay) = bulk(0) else { return };
    for series in all.iter().filter(|series| series.traffic == Traffic::Bulk && series.gate_ms > 0) {
        let speed = |series: &Series| series.rounds.each(|measured| measured.bytes_per_s);
        let name = format!("bulk_over_open_gate_{}ms", series.gate_ms);
        let ratio = Ratio::paired(&name, &speed(series), &speed(without_delay));
        results.ratios.push(ratio.note("goodput, divided by that with a delay of 0"));
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
}

fn print_round(out: &mut dyn Write, round: usize, series: &Series, measured: &Measured) {
    let figures = match series.traffic {
        Traffic::Bulk => {
            format!(
                "{:.2} MB/s, late {:.2} MB/s",
                measured.bytes_per_s / 1e6,
                measured.late_bytes_per_s / 1e6
            )
        }
        _ => format!(
            "{} answers, p50 {:.0} µs, p99 {:.0} µs",
            measured.latencies_ns.len(),
            measured.quantile_us(0.5).unwrap_or(f64::NAN),
            measured.quantile_us(0.99).unwrap_or(f64::NAN)
        ),
    };
    let count = |name: &str| measured.peer.get(name).copied().unwrap_or(0);
    print_line(
        out,
        format_args!(
            "round {}: gate of {} ms, {}: {figures}; the peer: {} retransmissions, {} segments, {} timeouts, {} probes",
            round + 1,
            series.gate_ms,
            series.traffic_name(),
            count("retransmissions"),
            count("segments"),
            count("timeouts"),
            count("probes")
        ),
    );
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::machine::Machine;

    fn series(traffic: Traffic, gate_ms: u64, bytes_per_s: f64) -> Series {
        let measured = Measured {
            bytes_per_s,
            bytes: 640,
            latencies_ns: vec![1_000_000; 10],
            peer: BTreeMap::from([("timeouts", 2), ("probes", 1), ("spurious", 1)]),
            ..Measured::default()
        };
        Series { traffic, gate_ms, rounds: (0..5).map(|_| Some(measured.clone())).collect() }
    }

    #[test]
    fn a_gate_is_compared_with_one_without_delay() {
        let all = [
            series(Traffic::Bulk, 0, 100e6),
            series(Traffic::Bulk, 50, 20e6),
            series(Traffic::AnsweredAtOnce, 50, 0.0),
        ];
        let mut results = Results::new("gate", Machine::default());
        all.iter().for_each(|series| add_rows(series, &mut results));
        add_ratios(&all, &mut results);
        add_checks(&all, &mut results);
        assert_eq!(results.ratios.len(), 1);
        assert_eq!(results.ratios[0].median, Some(0.2));
        let row = |metric: &str| results.rows.iter().rfind(|row| row.metric == metric).unwrap();
        assert_eq!((row("p99_us").median, row("timeouts").median), (Some(1000.0), Some(2.0)));
        assert!(results.passed());
    }

    #[test]
    fn a_measurement_lasts_for_several_delays() {
        let effort = Effort::quick();
        let plan = series(Traffic::AnsweredAtTheGate, 500, 0.0).plan(&effort);
        assert_eq!((plan.length, plan.work), (Duration::from_secs(2), Work::Answering));
        assert!(plan.gate.is_some_and(|gate| gate.replies_wait));
        assert_eq!(series(Traffic::Bulk, 1, 0.0).plan(&effort).length, effort.length);
    }
}
