//! Rows and ratios of the experiment `engine`.

use std::time::Duration;

use super::network::Pace;
use super::paths::Path;
use super::site::{Measured, Wire};
use super::{Effort, STAGED_PATHS, Series, WIRES};
use crate::results::{Ratio, Results, Row};

const ANCHORS: &str =
    "PostMan, Figure 10: 1,040 ns of a core for a message, network card included; eRPC: 100 ns";

impl Series {
    /// Adds the conditions of the measurement to a row.
    fn params(&self, row: Row) -> Row {
        match self.pace {
            Pace::Bursts => row.param("burst", self.clients),
            Pace::Rate(per_s) => {
                row.param("offered_per_s", per_s).param("busy_poll_us", self.busy_poll.as_micros() as u64)
            }
        }
    }
}

/// Figures of one measurement, in ns for each frame of a client.
impl Measured {
    fn each_frame(&self, time: Duration) -> f64 {
        time.as_nanos() as f64 / (2 * self.used.counts.requests) as f64
    }

    /// All CPU time of the engine.
    pub(super) fn cpu_ns(&self) -> f64 {
        self.each_frame(self.used.thread + self.used.interface)
    }

    pub(super) fn interface_ns(&self) -> f64 {
        self.each_frame(self.used.interface)
    }

    /// CPU time within turns.
    pub(super) fn in_turns_ns(&self) -> f64 {
        self.each_frame(self.used.counts.in_turns())
    }

    pub(super) fn frames_per_turn(&self) -> f64 {
        self.used.counts.frames as f64 / self.used.counts.turns_with_frames as f64
    }

    fn frames_per_round_trip(&self) -> f64 {
        (self.used.counts.frames + self.used.sent) as f64 / self.used.counts.requests as f64
    }

    fn core_percent(&self) -> f64 {
        let busy = self.used.thread + self.used.interface;
        100.0 * busy.as_secs_f64() / self.used.wall.as_secs_f64()
    }

    pub(super) fn round_trips_per_s(&self) -> f64 {
        self.used.counts.requests as f64 / self.used.wall.as_secs_f64()
    }
}

fn find(all: &[Series], wire: Wire, path: Path, burst: usize) -> Option<&Series> {
    all.iter().find(|series| {
        (series.wire, series.path, series.clients, series.pace) == (wire, path, burst, Pace::Bursts)
    })
}

pub(super) fn at_rate(all: &[Series], rate: f64, busy_poll: Duration) -> Option<&Series> {
    all.iter().find(|series| (series.pace, series.busy_poll) == (Pace::Rate(rate), busy_poll))
}

pub(super) fn add_rows(series: &Series, results: &mut Results) {
    let mut row = |metric: &str, unit: &str, value: &dyn Fn(&Measured) -> Option<f64>, note: &str| {
        let values: Vec<f64> = series.rounds.valid().filter_map(value).collect();
        let row = series.params(Row::new(series.wire.name(), metric, unit, &values));
        results.rows.push(row.param("path", series.path.name()).note(note).note(series.rounds.left_out()));
    };
    let anchors = if series.path == Path::Relay { ANCHORS } else { "" };
    row("cpu_ns_per_frame", "ns", &|measured| Some(measured.cpu_ns()), anchors);
    if series.wire == Wire::AfXdp {
        row(
            "interface_ns_per_frame",
            "ns",
            &|measured| Some(measured.interface_ns()),
            "part of the CPU time",
        );
    }
    // At a fixed rate turns may be full, and the samples of full turns are dropped.
    if series.pace == Pace::Bursts {
        row("in_turns_ns_per_frame", "ns", &|measured| Some(measured.in_turns_ns()), "part of the CPU time");
        row(
            "clock_ns",
            "ns",
            &|measured| Some(measured.used.clock_cost.as_nanos() as f64),
            "a reading of the thread's CPU clock, already subtracted",
        );
    }
    row("frames_per_turn", "frames", &|measured| Some(measured.frames_per_turn()), "turns with frames");
    row("frames_per_round_trip", "frames", &|measured| Some(measured.frames_per_round_trip()), "both ways");
    row("round_trips_per_s", "1/s", &|measured| Some(measured.round_trips_per_s()), "");
    row("core_percent", "% of a core", &|measured| Some(measured.core_percent()), "thread and interface");
    row("p50_us", "µs", &|measured| measured.seen.quantile_us(0.5), "");
    row("p99_us", "µs", &|measured| measured.seen.quantile_us(0.99), "");
}

/// A figure computed from two systems, for each round that is valid for both.
fn combined(
    first: &Series,
    second: &Series,
    value: impl Fn(&Measured, &Measured) -> f64,
    rounds: usize,
) -> Vec<f64> {
    let both = |round| Some(value(first.rounds.get(round)?, second.rounds.get(round)?));
    (0..rounds).filter_map(both).collect()
}

pub(super) fn add_stages(all: &[Series], effort: &Effort, results: &mut Results) {
    for &burst in &effort.bursts {
        for wire in WIRES {
            let [Some(driver), Some(stack), Some(relay)] =
                STAGED_PATHS.map(|path| find(all, wire, path, burst))
            else {
                continue;
            };
            let mut row = |stage: &str, values: &[f64], note: &str| {
                let row = Row::new(wire.name(), "stage_ns_per_frame", "ns", values);
                results.rows.push(row.param("burst", burst).param("stage", stage).note(note));
            };
            let within: Vec<f64> = driver.rounds.valid().map(Measured::in_turns_ns).collect();
            let outside: Vec<f64> =
                relay.rounds.valid().map(|measured| measured.cpu_ns() - measured.in_turns_ns()).collect();
            match wire {
                Wire::AfXdp => {
                    row("driver", &outside, "system calls, wake-ups and the interface's thread");
                    row("rings", &within, "with two copies that only the driver's path has");
                }
                Wire::Tap => {
                    let values = combined(
                        driver,
                        relay,
                        |driver, relay| driver.in_turns_ns() + relay.cpu_ns() - relay.in_turns_ns(),
                        effort.rounds,
                    );
                    row(
                        "driver",
                        &values,
                        "each frame is a system call within the turn: there are no rings to separate",
                    );
                }
            }
            let more = |later: &Measured, earlier: &Measured| later.in_turns_ns() - earlier.in_turns_ns();
            row("stack", &combined(stack, driver, more, effort.rounds), "");
            let link = match wire {
                Wire::AfXdp => "with the link's frames in the stack",
                Wire::Tap => "with the link's frames in the stack, and their system calls",
            };
            row("relay", &combined(relay, stack, more, effort.rounds), link);
            let total: Vec<f64> = relay.rounds.valid().map(Measured::cpu_ns).collect();
            row("all", &total, ANCHORS);
        }
        let (Some(driver), Some(crossing)) =
            (find(all, Wire::AfXdp, Path::Driver, burst), find(all, Wire::AfXdp, Path::Crossing, burst))
        else {
            continue;
        };
        let values = combined(crossing, driver, crossing_ns, effort.rounds);
        let row = Row::new(Wire::AfXdp.name(), "stage_ns_per_frame", "ns", &values)
            .param("burst", burst)
            .param("stage", "crossing")
            .note("of a frame that arrives at another thread's queue, wake-ups included; not in the other stages");
        results.rows.push(row);
    }
}

/// CPU time of a crossing frame in both threads. A round trip has two frames of a client, and only its
/// request crosses: hence the factor 2.
fn crossing_ns(crossing: &Measured, driver: &Measured) -> f64 {
    let Some(other) = crossing.crossed.filter(|other| other.frames > 0) else { return f64::NAN };
    2.0 * (crossing.cpu_ns() - driver.cpu_ns()) + other.thread.as_nanos() as f64 / other.frames as f64
}

pub(super) fn add_ratios(all: &[Series], effort: &Effort, results: &mut Results) {
    for &burst in &effort.bursts {
        for path in [Path::Driver, Path::Relay] {
            let (Some(xdp), Some(tap)) =
                (find(all, Wire::AfXdp, path, burst), find(all, Wire::Tap, path, burst))
            else {
                continue;
            };
            let part = if path == Path::Driver { "driver_" } else { "" };
            let ratio = Ratio::paired(
                &format!("{part}af_xdp_over_tap_{burst}"),
                &xdp.rounds.each(Measured::cpu_ns),
                &tap.rounds.each(Measured::cpu_ns),
            );
            let note = format!("CPU of a frame, {}, {burst} requests at once", path.name());
            results.ratios.push(ratio.note(note));
        }
    }
    for &rate in &effort.rates {
        let Some(asleep) = at_rate(all, rate, Duration::ZERO) else { continue };
        for busy_poll in effort.busy_polls.iter().filter(|busy_poll| !busy_poll.is_zero()) {
            let Some(busy) = at_rate(all, rate, *busy_poll) else { continue };
            let us = busy_poll.as_micros();
            let mut ratio = |figure: &str, value: &dyn Fn(&Measured) -> f64, note: &str| {
                let name = format!("busy_poll_{us}us_{figure}_at_{rate}");
                let ratio = Ratio::paired(&name, &busy.rounds.each(value), &asleep.rounds.each(value));
                results.ratios.push(ratio.note(format!("{note}, over that without busy_poll")));
            };
            let quantile =
                |share| move |measured: &Measured| measured.seen.quantile_us(share).unwrap_or(f64::NAN);
            ratio("cpu", &Measured::cpu_ns, "CPU of a frame");
            ratio("p50", &quantile(0.5), "median latency");
            ratio("p99", &quantile(0.99), "p99 of the latency");
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::clocked::TurnCounts;
    use super::super::network::Seen;
    use super::super::series;
    use super::super::turns::{Crossed, Used};
    use super::*;
    use crate::machine::Machine;

    /// 1,000 requests, with CPU times per frame of a client in ns.
    pub fn measured(within: u64, outside: u64, interface: u64) -> Measured {
        let ns = |each: u64| Duration::from_nanos(2_000 * each);
        let counts = TurnCounts {
            requests: 1_000,
            frames: 1_100,
            turns: 800,
            turns_with_frames: 550,
            sampled_turns: 100,
            sampled: ns(within) / 8,
        };
        let used = Used {
            wall: Duration::from_millis(10),
            thread: ns(within + outside),
            interface: ns(interface),
            counts,
            sent: 1_100,
            clock_cost: Duration::from_nanos(200),
        };
        let seen = Seen { answers: 1_000, latencies_ns: vec![20_000; 9], ..Seen::default() };
        Measured { used, seen, ..Measured::default() }
    }

    /// Every system with five equal rounds.
    fn all(effort: &Effort) -> Vec<Series> {
        let mut all = series(effort);
        for series in &mut all {
            let mut each = match series.path {
                Path::Driver => measured(100, 800, 600),
                Path::Crossing => measured(150, 1_000, 700),
                Path::Stack => measured(220, 800, 600),
                Path::Relay => measured(300, 900, 700),
            };
            if series.path == Path::Crossing {
                each.crossed = Some(Crossed { thread: Duration::from_micros(500), frames: 1_000 });
            }
            if series.wire == Wire::Tap {
                each.used.interface = Duration::ZERO;
            }
            if !series.busy_poll.is_zero() {
                each.used.thread *= 2;
                each.seen.latencies_ns = vec![10_000; 9];
            }
            series.rounds = (0..effort.rounds).map(|_| Some(each.clone())).collect();
        }
        all
    }

    #[test]
    fn stages_add_up_to_the_relays_path() {
        let effort = Effort::quick();
        let all = all(&effort);
        let mut results = Results::new("engine", Machine::default());
        all.iter().for_each(|series| add_rows(series, &mut results));
        add_stages(&all, &effort, &mut results);
        let stage = |system: &str, stage: &str| {
            let row = results.rows.iter().find(|row| {
                row.metric == "stage_ns_per_frame"
                    && row.system == system
                    && row.params["stage"] == stage
                    && row.params["burst"] == 8
            });
            row.and_then(|row| row.median).map(f64::round)
        };
        let stages = |system: &str| {
            ["driver", "rings", "crossing", "stack", "relay", "all"].map(|name| stage(system, name))
        };
        let some = |values: [f64; 6]| values.map(|value| (value >= 0.0).then_some(value));
        assert_eq!(stages("af_xdp"), some([1_600.0, 100.0, 1_200.0, 120.0, 80.0, 1_900.0]));
        assert_eq!(stages("tap"), some([1_000.0, -1.0, -1.0, 120.0, 80.0, 1_200.0]));
        let row = |metric: &str| results.rows.iter().find(|row| row.metric == metric).unwrap();
        assert_eq!(
            (row("frames_per_turn").median, row("frames_per_round_trip").median),
            (Some(2.0), Some(2.2))
        );
        assert!(results.rows.iter().all(|row| row.valid), "{:?}", results.rows);
        assert!(results.rows.iter().any(|row| row.why.contains("PostMan") && row.why.contains("eRPC")));
    }

    #[test]
    fn busy_poll_is_compared_with_sleeping_in_the_same_round() {
        let effort = Effort::quick();
        let all = all(&effort);
        let mut results = Results::new("engine", Machine::default());
        add_ratios(&all, &effort, &mut results);
        let ratio = |name: &str| results.ratios.iter().find(|ratio| ratio.name == name).unwrap();
        assert_eq!(ratio("busy_poll_50us_p50_at_10000").median, Some(0.5));
        assert!((ratio("busy_poll_50us_cpu_at_30000").median.unwrap() - 3_100.0 / 1_900.0).abs() < 1e-9);
        let over_tap = ratio("af_xdp_over_tap_32");
        assert!(
            over_tap.valid && (over_tap.median.unwrap() - 1_900.0 / 1_200.0).abs() < 1e-9,
            "{over_tap:?}"
        );
        assert_eq!(results.ratios.len(), 2 * 3 + 3 * 2);
    }
}
