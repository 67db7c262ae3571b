//! CPU time of a frame in a helper's engine by stage: driver, rings, crossing between threads, stack, relay; on a TAP
//! interface and on AF_XDP over a veth. And the effect of `busy_poll`.
//!
//! **Paths.** The same frames, requests of 64 bytes of scripted clients, go through four paths, each of which contains the
//! one before it: the *driver* alone sends each frame back; the *stack* acknowledges it and its echo application answers;
//! the *relay* passes it to a server in an encrypted batch, and the server's replies to the clients. All paths run in the
//! turns of [`spillway_xdp::Driver`]. A round trip has two frames of a client, request and answer, and all figures are per
//! frame of a client; the frames of the link belong to the relay's path and are counted apart (`frames_per_round_trip`).
//!
//! **Accounts.** All CPU time of the engine is that of its thread (its CPU clock, read at both ends of the measured time)
//! and of its interface's receive thread (the account of the host). A TAP interface has no receive thread: the sender's
//! thread queues a frame, and the engine's thread runs the far interface's receive path when it writes one.
//!
//! **Stages.** In one of eight turns, chosen at random, the thread's CPU clock is read at the beginning and when the endpoint
//! has no more frames to send. Between the two lies the work in user space: on AF_XDP, all of the four rings, stack and
//! relay, but no system call. So each stage is a difference that neither wake-ups nor preemption change:
//!
//! | stage | is |
//! |---|---|
//! | driver | all CPU time outside turns on the relay's path: system calls and waking up, and the interface's thread |
//! | rings | CPU time within turns on the driver's path; it includes two copies of 130 bytes that only this path has |
//! | stack | CPU time within turns: the stack's path less the driver's |
//! | relay | CPU time within turns: the relay's path less the stack's; includes the link's frames in the stack |
//!
//! Their sum is the CPU time of the relay's path by definition. On TAP every frame is a system call within the turn, so
//! driver and rings are one stage there, and those calls for the link's frames are in the stage *relay*.
//!
//! **Errors.** A reading of the clock costs some hundred nanoseconds (`clock_ns`), which is subtracted once per sampled turn
//! and twice from the thread's total; what remains is at most one such reading per turn, so that stages of one frame per
//! turn are uncertain by that much, and those of 32 frames by a thirtieth of it. Caches are those of each path: a stage's
//! cost contains what it makes the others miss. The account of the interface's thread lags by a scheduler tick at most.
//!
//! **Crossing.** A frame that arrives at the queue of another thread is copied and crosses to it ([`spillway_xdp::Crossing`]).
//! No other path has that stage. Its cost is the driver's path with a copy of each frame crossing to a second thread on the
//! same core, less the driver's path, and the second thread's CPU time. The difference contains its wake-ups.

mod clocked;
mod network;
mod paths;
mod site;
mod turns;

use std::io::Write;
use std::time::Duration;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{Rounds, measurement_order, print_line, spoilt_suffix};
use crate::measure::measure_until_valid;
use crate::results::{Check, Ratio, Results, Row};
use crate::scene::Setting;

use network::Pace;
use paths::Path;
use site::{Measured, Plan, Site, Wire};
use turns::Window;

const WIRES: [Wire; 2] = [Wire::Tap, Wire::AfXdp];
const STAGED_PATHS: [Path; 3] = [Path::Driver, Path::Stack, Path::Relay];
/// Clients at a fixed rate: so few that each sends again before a probe of the stack is due.
const CLIENTS_AT_RATE: usize = 8;
const ATTEMPTS_MAX: u32 = 3;
const ANCHORS: &str =
    "PostMan, Figure 10: 1,040 ns of a core for a message, network card included; eRPC: 100 ns";

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Number of rounds.
    pub rounds: usize,
    /// Requests that arrive at once.
    pub bursts: Vec<usize>,
    /// Rates at which waiting is compared, in requests a second.
    pub rates: Vec<f64>,
    /// Values of `busy_poll`; zero is the default, without it.
    pub busy_polls: Vec<Duration>,
    /// Time with load before each measurement.
    pub warm_up: Duration,
    /// Length of a measurement.
    pub length: Duration,
}

impl Effort {
    /// The effort of a complete run, whose figures may be published.
    pub fn full() -> Effort {
        Effort {
            rounds: 11,
            bursts: vec![1, 8, 32],
            rates: vec![10_000.0, 30_000.0],
            busy_polls: vec![Duration::ZERO, Duration::from_micros(50)],
            warm_up: Duration::from_millis(100),
            length: Duration::from_millis(600),
        }
    }

    /// The effort of a quick run: about a minute.
    pub fn quick() -> Effort {
        Effort { rounds: 5, length: Duration::from_millis(200), ..Effort::full() }
    }
}

/// All rounds of one system.
#[derive(Clone, Debug)]
struct Series {
    wire: Wire,
    path: Path,
    clients: usize,
    pace: Pace,
    busy_poll: Duration,
    rounds: Rounds<Measured>,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let mut site = Site::create(setting)?;
    let mut machine = site.machine()?;
    if cfg!(debug_assertions) {
        machine.lab.insert("build".into(), "with assertions: times are not those of a release".into());
    }
    let mut all = series(effort);
    let mut counted = Counted::default();
    let outcome = measurement_order(effort.rounds, all.len()).try_for_each(|(round, index)| {
        let plan = all[index].plan(effort);
        let measured = measure_until_valid(
            ATTEMPTS_MAX,
            || site.measure(&plan).inspect(|measured| counted.add(measured)),
            |measured| measured.spoilt.is_none() || measured.seen.lost > 0,
        )?;
        print_round(out, round, &all[index], &measured);
        let (lost, spoilt) = (measured.seen.lost, measured.spoilt.clone());
        all[index].rounds.push((measured, spoilt));
        if lost > 0 {
            Err(Error::process("the engine", format!("{lost} requests were lost")))
        } else {
            Ok(())
        }
    });
    // A lost request stops the run, and its check fails.
    let outcome = outcome.and_then(|()| site.close());
    let mut results = Results::new("engine", machine);
    all.iter().for_each(|series| add_rows(series, &mut results));
    add_stages(&all, effort, &mut results);
    add_ratios(&all, effort, &mut results);
    results.checks = counted.checks();
    Ok(results.with_outcome(outcome))
}

/// All systems in the order in which a round measures them.
fn series(effort: &Effort) -> Vec<Series> {
    let mut all = Vec::new();
    let mut add = |wire, path, clients, pace, busy_poll| {
        all.push(Series { wire, path, clients, pace, busy_poll, rounds: Rounds::default() });
    };
    for &burst in &effort.bursts {
        for path in STAGED_PATHS {
            WIRES.iter().for_each(|&wire| add(wire, path, burst, Pace::Bursts, Duration::ZERO));
        }
        add(Wire::AfXdp, Path::Crossing, burst, Pace::Bursts, Duration::ZERO);
    }
    for &rate in &effort.rates {
        for &busy_poll in &effort.busy_polls {
            add(Wire::AfXdp, Path::Relay, CLIENTS_AT_RATE, Pace::Rate(rate), busy_poll);
        }
    }
    all
}

impl Series {
    fn plan(&self, effort: &Effort) -> Plan {
        let window = Window { warm_up: effort.warm_up, length: effort.length, busy_poll: self.busy_poll };
        Plan { wire: self.wire, path: self.path, clients: self.clients, pace: self.pace, window }
    }

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
    fn cpu_ns(&self) -> f64 {
        self.each_frame(self.used.thread + self.used.interface)
    }

    fn interface_ns(&self) -> f64 {
        self.each_frame(self.used.interface)
    }

    /// CPU time within turns.
    fn in_turns_ns(&self) -> f64 {
        self.each_frame(self.used.counts.in_turns())
    }

    fn frames_per_turn(&self) -> f64 {
        self.used.counts.frames as f64 / self.used.counts.turns_with_frames as f64
    }

    fn frames_per_round_trip(&self) -> f64 {
        (self.used.counts.frames + self.used.sent) as f64 / self.used.counts.requests as f64
    }

    fn core_percent(&self) -> f64 {
        let busy = self.used.thread + self.used.interface;
        100.0 * busy.as_secs_f64() / self.used.wall.as_secs_f64()
    }

    fn round_trips_per_s(&self) -> f64 {
        self.used.counts.requests as f64 / self.used.wall.as_secs_f64()
    }
}

fn find(all: &[Series], wire: Wire, path: Path, burst: usize) -> Option<&Series> {
    all.iter().find(|series| {
        (series.wire, series.path, series.clients, series.pace) == (wire, path, burst, Pace::Bursts)
    })
}

fn at_rate(all: &[Series], rate: f64, busy_poll: Duration) -> Option<&Series> {
    all.iter().find(|series| (series.pace, series.busy_poll) == (Pace::Rate(rate), busy_poll))
}

fn add_rows(series: &Series, results: &mut Results) {
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
    if series.busy_poll.is_zero() {
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

/// Figures of two systems in the same rounds, combined.
fn combined(
    first: &Series,
    second: &Series,
    value: impl Fn(&Measured, &Measured) -> f64,
    rounds: usize,
) -> Vec<f64> {
    let both = |round| Some(value(first.rounds.get(round)?, second.rounds.get(round)?));
    (0..rounds).filter_map(both).collect()
}

fn add_stages(all: &[Series], effort: &Effort, results: &mut Results) {
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

/// What a crossing frame costs both threads. Only requests cross, one for each round trip.
fn crossing_ns(crossing: &Measured, driver: &Measured) -> f64 {
    let Some(other) = crossing.crossed.filter(|other| other.frames > 0) else { return f64::NAN };
    2.0 * (crossing.cpu_ns() - driver.cpu_ns()) + other.thread.as_nanos() as f64 / other.frames as f64
}

fn add_ratios(all: &[Series], effort: &Effort, results: &mut Results) {
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

/// Answers of all measurements, spoilt ones included.
#[derive(Clone, Debug, Default, PartialEq)]
struct Counted {
    answers: u64,
    wrong: u64,
    first_wrong: Option<String>,
    lost: u64,
}

impl Counted {
    fn add(&mut self, measured: &Measured) {
        self.answers += measured.seen.answers;
        self.wrong += measured.seen.wrong;
        self.lost += measured.seen.lost;
        if self.first_wrong.is_none() {
            self.first_wrong.clone_from(&measured.seen.first_wrong);
        }
    }

    fn checks(&self) -> Vec<Check> {
        let answers = format!("{} answers, each compared", self.answers);
        let first = self.first_wrong.as_ref().map(|why| format!(" (first: {why})")).unwrap_or_default();
        vec![
            Check::none("wrong", self.wrong, &format!("{answers}{first}")),
            Check::none("lost", self.lost, &answers),
        ]
    }
}

fn print_round(out: &mut dyn Write, round: usize, series: &Series, measured: &Measured) {
    let load = match series.pace {
        Pace::Bursts => format!("{} at once", series.clients),
        Pace::Rate(rate) => format!("{rate}/s, busy_poll {:?}", series.busy_poll),
    };
    print_line(
        out,
        format_args!(
            "round {}: {}, {}, {load}: {:.0} ns a frame (interface {:.0}, in turns {:.0}), {:.1} frames a turn, \
             {:.0}/s, p50 {:.1} µs{}{}",
            round + 1,
            series.wire.name(),
            series.path.name(),
            measured.cpu_ns(),
            measured.interface_ns(),
            measured.in_turns_ns(),
            measured.frames_per_turn(),
            measured.round_trips_per_s(),
            measured.seen.quantile_us(0.5).unwrap_or(f64::NAN),
            if measured.seen.repeated > 0 {
                format!(", {} answers repeated", measured.seen.repeated)
            } else {
                String::new()
            },
            spoilt_suffix(measured.spoilt.as_deref())
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::clocked::TurnCounts;
    use super::turns::{Crossed, Used};
    use super::*;
    use crate::experiments::tcp::engine::network::Seen;
    use crate::machine::Machine;

    /// 1,000 requests, with CPU times per frame of a client in ns.
    fn measured(within: u64, outside: u64, interface: u64) -> Measured {
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

    #[test]
    fn each_path_is_measured_at_each_burst_and_sleeping_at_each_rate() {
        let effort = Effort::full();
        let all = series(&effort);
        assert_eq!(all.len(), 3 * (3 * 2 + 1) + 2 * 2);
        assert!(effort.bursts.iter().all(|burst| *burst < spillway_xdp::BATCH_FRAMES), "a sampled turn ends");
        let plan = at_rate(&all, 10_000.0, Duration::from_micros(50)).unwrap().plan(&effort);
        assert_eq!((plan.path, plan.clients), (Path::Relay, CLIENTS_AT_RATE));
        assert_eq!(plan.window.busy_poll, Duration::from_micros(50));
    }

    #[test]
    fn wrong_and_lost_answers_fail_the_checks() {
        let mut counted = Counted::default();
        counted.add(&measured(1, 1, 1));
        assert!(counted.checks().iter().all(|check| check.ok));
        let mut bad = measured(1, 1, 1);
        (bad.seen.wrong, bad.seen.lost) = (1, 2);
        bad.seen.first_wrong = Some("another frame".into());
        counted.add(&bad);
        let checks = counted.checks();
        assert!(checks.iter().all(|check| !check.ok), "{checks:?}");
        assert!(checks[0].detail.contains("1 of 2000 answers") && checks[0].detail.contains("another frame"));
    }
}
