//! Effects of a gate on a Linux peer. A stack with a gate acknowledges bytes a fixed time after their arrival, as a
//! helper does that waits for its server's acknowledgement. Measures bulk throughput, and round trips whose answers
//! come at once or with the acknowledgement. No frame is lost, so every retransmission of the peer is spurious. Every
//! byte is compared.

use std::io::Write;
use std::time::Duration;

use spillway_xdp::FaultsOptions;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{Rounds, print_line, turns};
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

    /// For a run of two minutes.
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
    let mut site = Site::set("gate", setting)?;
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
    let course = turns(effort.rounds, all.len()).try_for_each(|(round, at)| {
        let seen = site.measure(&all[at].plan(effort))?;
        print_round(out, round, &all[at], &seen);
        all[at].rounds.take((seen, None));
        Ok(())
    });
    let course = course.and_then(|()| site.close());
    let mut results = Results::new("gate", machine);
    all.iter().for_each(|series| rows(series, &mut results));
    ratios(&all, &mut results);
    checks(&all, &mut results);
    Ok(results.after(course))
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

fn rows(series: &Series, results: &mut Results) {
    let mut row = |metric: &str, unit: &str, value: &dyn Fn(&Measured) -> Option<f64>, note: &str| {
        let values: Vec<f64> = series.rounds.good().filter_map(value).collect();
        let row = Row::new("spillway", metric, unit, &values)
            .param("gate_ms", series.gate_ms)
            .param("traffic", series.traffic_name());
        results.rows.push(row.note(note));
    };
    if series.traffic == Traffic::Bulk {
        row(
            "bulk_bytes_per_s",
            "B/s",
            &|seen| Some(seen.bytes_per_s),
            "from the first byte on, slow start included",
        );
        row(
            "bulk_late_bytes_per_s",
            "B/s",
            &|seen| Some(seen.late_bytes_per_s),
            "in the second half, when the window limits",
        );
    } else {
        row("round_trips_per_s", "1/s", &|seen| Some(seen.round_trips_per_s()), "64 bytes, one at a time");
        row("p50_us", "µs", &|seen| seen.quantile_us(0.5), "");
        row("p99_us", "µs", &|seen| seen.quantile_us(0.99), "");
        row("max_us", "µs", &|seen| seen.quantile_us(1.0), "");
    }
    let count = |name: &'static str| move |seen: &Measured| seen.peer.get(name).map(|count| *count as f64);
    row(
        "sent_again_percent",
        "%",
        &|seen| Some(100.0 * seen.sender.again_share),
        "of the peer's segments, for nothing",
    );
    row("sent_again", "segments", &count("again"), "in a connection's life");
    row("timeouts", "of the peer", &count("timeouts"), "in a connection's life");
    row("tail_loss_probes", "of the peer", &count("probes"), "in a connection's life");
    row("found_spurious", "of the peer", &count("spurious"), "timeouts that it took back");
}

fn ratios(all: &[Series], results: &mut Results) {
    let bulk = |gate_ms| all.iter().find(|s| s.traffic == Traffic::Bulk && s.gate_ms == gate_ms);
    let Some(open) = bulk(0) else { return };
    for series in all.iter().filter(|s| s.traffic == Traffic::Bulk && s.gate_ms > 0) {
        let speed = |series: &Series| series.rounds.each(|seen| seen.bytes_per_s);
        let name = format!("bulk_over_open_gate_{}ms", series.gate_ms);
        let ratio = Ratio::paired(&name, &speed(series), &speed(open));
        results.ratios.push(ratio.note("goodput, by that of a gate that opens at once"));
    }
}

fn checks(all: &[Series], results: &mut Results) {
    let seen = || all.iter().flat_map(|series| series.rounds.good());
    let (wrong, bytes) = (seen().map(|seen| seen.wrong).sum(), seen().map(|seen| seen.bytes).sum::<u64>());
    let of = format!("{bytes} bytes, each compared, from the first to the last");
    results.checks.push(Check::none("wrong", wrong, &of));
    let trouble = seen().map(|seen| seen.trouble).sum();
    results.checks.push(Check::none(
        "trouble",
        trouble,
        "connections given up or reset, or frames that were malformed",
    ));
}

fn print_round(out: &mut dyn Write, round: usize, series: &Series, seen: &Measured) {
    let what = match series.traffic {
        Traffic::Bulk => {
            format!("{:.2} MB/s, late {:.2} MB/s", seen.bytes_per_s / 1e6, seen.late_bytes_per_s / 1e6)
        }
        _ => format!(
            "{} answers, p50 {:.0} µs, p99 {:.0} µs",
            seen.took_ns.len(),
            seen.quantile_us(0.5).unwrap_or(f64::NAN),
            seen.quantile_us(0.99).unwrap_or(f64::NAN)
        ),
    };
    let count = |name: &str| seen.peer.get(name).copied().unwrap_or(0);
    print_line(
        out,
        format_args!(
            "round {}: gate of {} ms, {}: {what}; the peer sent {} segments of {} again, {} timeouts, {} probes",
            round + 1,
            series.gate_ms,
            series.traffic_name(),
            count("again"),
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
        let seen = Measured {
            bytes_per_s,
            bytes: 640,
            took_ns: vec![1_000_000; 10],
            peer: BTreeMap::from([("timeouts", 2), ("probes", 1), ("spurious", 1)]),
            ..Measured::default()
        };
        Series { traffic, gate_ms, rounds: (0..5).map(|_| Some(seen.clone())).collect() }
    }

    #[test]
    fn a_gate_is_compared_with_one_without_delay() {
        let all = [
            series(Traffic::Bulk, 0, 100e6),
            series(Traffic::Bulk, 50, 20e6),
            series(Traffic::AnsweredAtOnce, 50, 0.0),
        ];
        let mut results = Results::new("gate", Machine::default());
        all.iter().for_each(|series| rows(series, &mut results));
        ratios(&all, &mut results);
        checks(&all, &mut results);
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
