//! Failover of sessions when their helper is killed, stopped, or cut off (PostMan, Figure 11).
//!
//! All sessions start on one helper, and another one is the standby. Requests form an open loop with equal intervals,
//! at a rate far below the machine's capacity: in a closed loop every session would have a pending request, and
//! reconnecting would compete with replies on a saturated machine. Each run has its own clients; rounds rotate the
//! faults.

mod findings;
mod recovery;

use std::io::Write;
use std::time::Duration;

use rustix::process::Signal;
use spillway_lab::{Host, Loss, Place};
use spillway_load::config::ProtocolKind;
use spillway_load::monotonic_ns;
use spillway_load::report::Report;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{measurement_order, print_line, spoilt_suffix};
use crate::generator::{Clients, Order, Routes, Traffic};
use crate::measure::{spoilt_by, stopped};
use crate::results::Results;
use crate::scene::Setting;
use crate::stage::{Helper, HelperKind, Pair, Stage};

/// As in PostMan, Figure 11.
const CONNECTIONS: u32 = 1_000;
/// As in PostMan, Figure 11.
const THREADS: u32 = 10;
const HELPERS: HelperKind =
    HelperKind { library: true, batch: "adaptive", max_delay: Duration::from_micros(200) };
/// Limit for replies in time: far above normal latencies, and below the timeouts of sessions.
const SLA: Duration = Duration::from_millis(50);
/// A larger p99 of the clients' lag before the fault spoils a run: half of the grid.
const LAG_US_MAX: u64 = recovery::GRID_MS * 1000 / 2;
/// A run continues for this time after the fault, to find data of the first helper that reach a client late.
const PAUSE_AFTER_FAULT: Duration = Duration::from_millis(500);
/// Start and end of the throughput curve, in ms relative to the fault.
const COURSE_MS: (i64, i64) = (-500, 1_000);

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Number of rounds; each has every fault once.
    pub rounds: usize,
    /// Number of sessions.
    pub connections: u32,
    /// Requests a second over all sessions.
    pub rate_per_s: f64,
    /// Time of load before the fault; longer than the reference span of [`recovery::BEFORE_MS`].
    pub settle: Duration,
    /// Measured time after the fault.
    pub after: Duration,
    /// Maximum number of attempts at a spoilt run, the first included.
    pub attempts_max: u32,
}

impl Effort {
    /// The effort of a complete run, whose figures may be published.
    pub fn full() -> Effort {
        Effort {
            rounds: 7,
            connections: CONNECTIONS,
            rate_per_s: 5_000.0,
            settle: Duration::from_millis(2_000),
            after: Duration::from_millis(2_000),
            attempts_max: 3,
        }
    }

    /// The effort of a quick run: about two minutes.
    pub fn quick() -> Effort {
        Effort { rounds: 3, attempts_max: 2, ..Effort::full() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    Stop,
    /// The helper's host loses all packets.
    Cut,
}

const FAULTS: [Fault; 3] = [Fault::Kill, Fault::Stop, Fault::Cut];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Stop => "stop",
            Fault::Cut => "cut",
        }
    }
}

/// Result of one run. Times are in ms since the fault.
#[derive(Clone, Debug, Default, PartialEq)]
struct RunResult {
    /// [`recovery::recovered_ms`] of replies in time.
    recovered_ms: Option<u64>,
    /// [`recovery::recovered_ms`] of all replies.
    throughput_again_ms: Option<u64>,
    /// Times at which the first and the last session moved to another helper.
    carried_on_ms: Option<(u64, u64)>,
    silence_ms: u64,
    slowest_ms: f64,
    /// Duration of the call that causes the fault.
    strike_ms: f64,
    /// Replies a second in steps of 100 ms.
    throughput_course: Vec<(i64, f64)>,
    replies: u64,
    lost: u64,
    repeated: u64,
    reordered: u64,
    resets: u64,
    carried_on: u64,
    problems: Vec<String>,
    stalled_ms: f64,
    spoilt: Option<String>,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let stage = Stage::create("fail", setting)?;
    let _ = writeln!(
        out,
        "{}; no quota; {}/s offered over {} sessions",
        setting.placement.description(),
        effort.rate_per_s,
        effort.connections
    );
    let pair = stage.pair(ProtocolKind::Memcached, &[64])?;
    let second = stage.second_middle()?;
    let port = Place::from(&stage.middle_host).free_port()?;
    let standby = stage.helper_on((&second, Place::from(&second).free_port()?), pair.link, &HELPERS)?;
    let first = stage.helper_on((&stage.middle_host, port), pair.link, &HELPERS)?;
    let mut setup = Setup { stage: &stage, effort, pair, port, first, standby, second };
    let mut series = FAULTS.map(|fault| (fault, Vec::new()));
    let machine = stage.machine(&[("memcached", "-V")])?;
    let outcome = measurement_order(effort.rounds, series.len()).try_for_each(|(round, index)| {
        let (fault, runs) = &mut series[index];
        for _ in 0..effort.attempts_max.max(1) {
            let result = setup.run(*fault)?;
            print_round(out, round, *fault, &result);
            let is_valid = result.spoilt.is_none();
            runs.push(result);
            if is_valid {
                break;
            }
        }
        Ok(())
    });
    drop(setup);
    let outcome = outcome.and_then(|()| stage.close());
    let mut results = Results::new("failover", machine);
    findings::add_results(&series, effort, &mut results);
    Ok(results.with_outcome(outcome))
}

/// Servers and helpers; each run starts its own clients.
struct Setup<'a> {
    stage: &'a Stage,
    effort: &'a Effort,
    pair: Pair,
    /// Port of the first helper; its replacement after a kill uses the same.
    port: u16,
    first: Helper,
    standby: Helper,
    /// The standby's host; the stage's CPU accounts do not include it.
    second: Host,
}

impl Setup<'_> {
    fn run(&mut self, fault: Fault) -> Result<RunResult, Error> {
        let traffic = Traffic { constant: true, bin_ms: recovery::GRID_MS, ..Traffic::default() };
        let plain = self.stage.clients(self.pair.shimmed.address(), &traffic, self.effort.connections);
        let routes = Routes {
            helpers: vec![self.first.address, self.standby.address],
            standby: true,
            link: None,
            sessions_per_process: None,
            key: self.stage.client_key().to_owned(),
        };
        let threads = THREADS.min(self.effort.connections);
        let clients = Clients { sessions: Some(routes), threads, sla: SLA, ..plain };
        let mut session = self.stage.session_of(&clients, &traffic)?;
        let generators = session.generators();
        generators.order(&Order::Rate(self.effort.rate_per_s))?;
        generators.sleep_until_ms(0);
        std::thread::sleep(self.effort.settle);

        let (before, second_before) = (self.stage.snapshot(None)?, self.second.cpu()?);
        let from_ns = monotonic_ns();
        let loss = self.cause_fault(fault)?;
        let strike_ms = (monotonic_ns() - from_ns) as f64 / 1e6;
        let fault_ms = generators.ms_at(from_ns);
        let end_ms = fault_ms + u64::try_from(self.effort.after.as_millis()).unwrap_or(u64::MAX);
        generators.sleep_until_ms(end_ms);
        let mut used = self.stage.snapshot(None)?.since(&before);
        used.others_s -= self.second.cpu()?.since(&second_before).total().as_secs_f64();
        generators.check()?;
        self.end_fault(fault, loss)?;
        std::thread::sleep(PAUSE_AFTER_FAULT);
        let report = session.report()?;
        self.pair.check()?;
        self.standby.check()?;
        let result = RunResult::of(&report, fault_ms, end_ms);
        // Only lag before the fault spoils a run: clients that reconnect lag as a consequence of the fault.
        let lag_us =
            report.span(fault_ms.saturating_sub(recovery::BEFORE_MS), fault_ms).lag_us.quantile_us(0.99);
        let lagged = (lag_us > LAG_US_MAX).then(|| format!("the clients lagged: p99 {} µs", lag_us));
        let spoilt = lagged.or_else(|| spoilt_by(&used, 0)).or_else(|| stopped(&used));
        Ok(RunResult { strike_ms, stalled_ms: used.stalled_s * 1000.0, spoilt, ..result })
    }

    /// Causes the fault. A cut lasts until the returned value is dropped.
    fn cause_fault(&mut self, fault: Fault) -> Result<Option<Loss>, Error> {
        match fault {
            Fault::Kill => self.first.signal(Signal::KILL.as_raw()).map(|()| None),
            Fault::Stop => self.first.signal(Signal::STOP.as_raw()).map(|()| None),
            Fault::Cut => Ok(Some(self.stage.middle_host.drop_packets(1.0)?)),
        }
    }

    /// Ends the fault, and waits until the first helper has its link again.
    fn end_fault(&mut self, fault: Fault, loss: Option<Loss>) -> Result<(), Error> {
        drop(loss);
        match fault {
            Fault::Kill => {
                self.first.stop();
                let (stage, link) = (self.stage, self.pair.link);
                self.first = stage.helper_on((&stage.middle_host, self.port), link, &HELPERS)?;
            }
            Fault::Stop => self.first.signal(Signal::CONT.as_raw())?,
            Fault::Cut => {}
        }
        // The server may have given up the link during the fault.
        self.first.wait_for_link()
    }
}

impl RunResult {
    fn of(report: &Report, fault_ms: u64, end_ms: u64) -> RunResult {
        let bins = &report.bins;
        let all = report.span(0, u64::MAX).summary();
        let around = report.span(fault_ms.saturating_sub(recovery::BEFORE_MS), end_ms);
        let slowest_us = [&around.direct, &around.helped].map(|carried| carried.latency_us.max_us());
        RunResult {
            recovered_ms: recovery::recovered_ms(bins, fault_ms, end_ms, recovery::timely),
            throughput_again_ms: recovery::recovered_ms(bins, fault_ms, end_ms, recovery::replied),
            carried_on_ms: recovery::carried_on_ms(bins, fault_ms, end_ms),
            silence_ms: recovery::silence_ms(bins, fault_ms, end_ms),
            slowest_ms: slowest_us.into_iter().max().unwrap_or(0) as f64 / 1000.0,
            throughput_course: recovery::throughput_course(bins, fault_ms, COURSE_MS, recovery::replied),
            replies: all.answered,
            lost: all.lost + all.dropped,
            repeated: all.unasked,
            reordered: all.wrong - all.unasked.min(all.wrong),
            resets: all.resets,
            carried_on: bins.iter().filter(|bin| bin.at_ms < end_ms).map(|bin| bin.carrier_changes).sum(),
            problems: report.problems.clone(),
            ..RunResult::default()
        }
    }
}

fn print_round(out: &mut dyn Write, round: usize, fault: Fault, result: &RunResult) {
    let ms = |value: Option<u64>| value.map_or("never".into(), |ms| format!("{ms} ms"));
    let spoilt = spoilt_suffix(result.spoilt.as_deref());
    let carried = result.carried_on_ms.map_or("–".into(), |(first, last)| format!("{first} to {last} ms"));
    print_line(
        out,
        format_args!(
            "round {}: {}: recovered after {}, throughput after {}; {} moves after {carried}; silence {} ms, \
             slowest {:.0} ms; {} lost, {} repeated, {} reordered of {}{spoilt}",
            round + 1,
            fault.name(),
            ms(result.recovered_ms),
            ms(result.throughput_again_ms),
            result.carried_on,
            result.silence_ms,
            result.slowest_ms,
            result.lost,
            result.repeated,
            result.reordered,
            result.replies,
        ),
    );
}
