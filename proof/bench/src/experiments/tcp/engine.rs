//! CPU time of a frame in a helper's engine by stage: driver, rings, crossing between threads, stack, relay; on a TAP
//! interface and on AF_XDP over a veth. Also the effect of `busy_poll`.
//!
//! **Paths.** The same frames, requests of 64 bytes from scripted clients, go through three paths, each of
//! which contains the one before it: the *driver* alone sends each frame back; the *stack* acknowledges it
//! and its echo application answers; the *relay* passes it to a server in an encrypted batch, and the
//! server's replies to the clients. All paths run in the turns of [`spillway_xdp::Driver`]. A round trip has
//! two frames of a client, request and answer, and all figures are per frame of a client; the frames of the
//! link belong to the relay's path and are counted separately (`frames_per_round_trip`).
//!
//! **Accounts.** The engine's CPU time is that of its thread (by the thread's CPU clock, read at both ends of
//! the measured time) plus that of its interface's receive thread (by the host's account). A TAP interface
//! has no receive thread: the sender's thread queues a frame, and the engine's thread runs the far
//! interface's receive path when it writes one.
//!
//! **Stages.** In one of eight turns, chosen at random, the thread's CPU clock is read at the beginning and
//! when the endpoint has no more frames to send. Between the two readings is the work in user space: on
//! AF_XDP, that of the four rings, stack and relay, without system calls. So each stage is a difference that
//! neither wake-ups nor preemption change:
//!
//! | stage | cost |
//! |---|---|
//! | driver | all CPU time outside turns on the relay's path: system calls and waking up, and the interface's thread |
//! | rings | CPU time within turns on the driver's path; it includes two copies of 130 bytes that only this path has |
//! | stack | CPU time within turns: the stack's path less the driver's |
//! | relay | CPU time within turns: the relay's path less the stack's; includes the link's frames in the stack |
//!
//! Their sum is the CPU time of the relay's path by definition. On TAP every frame is a system call within the turn, so
//! driver and rings are one stage there, and the system calls for the link's frames are in the stage *relay*.
//!
//! **Errors.** For each sampled turn, the cost of a clock reading (some hundred ns, `clock_ns`) is subtracted
//! once from the sample and twice from the thread's total. The remaining error is at most one reading per
//! turn: stages of one frame per turn are uncertain by that much, those of 32 frames by a thirtieth of it.
//! Each path fills the caches in its own way, so a stage's cost includes cache misses that it causes in other
//! stages. The account of the interface's thread lags by a scheduler tick at most.
//!
//! **Crossing.** A frame that arrives at another thread's queue is copied and crosses to that thread
//! ([`spillway_xdp::Crossing`]). A fourth path measures this: the driver's path, from which a copy of each
//! frame crosses to a second thread on the same core. The cost of this stage is the CPU time that the copy
//! adds to the driver's path, wake-ups included, plus the second thread's CPU time.

mod clocked;
mod findings;
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
use crate::results::{Check, Results};
use crate::scene::Setting;

use findings::{add_ratios, add_rows, add_stages};
use network::Pace;
use paths::Path;
use site::{Measured, Plan, Site, Wire};
use turns::Window;

const WIRES: [Wire; 2] = [Wire::Tap, Wire::AfXdp];
const STAGED_PATHS: [Path; 3] = [Path::Driver, Path::Stack, Path::Relay];
/// Number of clients at a fixed rate: enough that latency does not limit the rate, and few enough that each
/// client's next request acknowledges its last answer long before the stack would probe (200 ms).
const CLIENTS_AT_RATE: usize = 64;
const ATTEMPTS_MAX: u32 = 3;

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Number of rounds.
    pub rounds: usize,
    /// Numbers of requests that arrive at once.
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
    use super::findings::at_rate;
    use super::findings::tests::measured;
    use super::*;

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
