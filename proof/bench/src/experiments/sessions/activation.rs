//! Relief that clients switch on by themselves (PostMan §5.3): number of switches while load swings around the
//! threshold, and how long replies are late in a real burst, compared with clients that never switch.
//!
//! Clients are groups of sessions; each group decides as one process would. All sessions start on the
//! server's own link port. The server's host has a quota. Two courses of load, the swing and the burst, are
//! each run with clients that decide and with clients that never switch.

mod findings;

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use spillway_load::config::ProtocolKind;
use spillway_load::report::Report;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{measurement_order, print_line, spoilt_suffix};
use crate::generator::{BIN_MS, Clients, Order, Routes, Traffic};
use crate::goodput::Tally;
use crate::measure::{spoilt_by, stopped};
use crate::relief::{GRID_MS, Span, relief_ms, sla_us};
use crate::results::Results;
use crate::scene::{Setting, quota_text};
use crate::stage::{Helper, HelperKind, MiddleHosts, Pair, QUOTA_ENTRY, Session, Stage};

const HELPERS: usize = 2;
/// Start of the search for the threshold, in requests a second.
const SEARCH_FROM_PER_S: f64 = 1_000.0;
const SEARCH_FACTOR: f64 = 1.2;
const SEARCH_MAX_PER_S: f64 = 60_000.0;
/// Rate at which the p99 for the SLA is measured: about a fifth of such a server's capacity.
const LIGHT_PER_S: f64 = 800.0;
const LIGHT_STEPS: u32 = 3;
/// Rate that saturates a server with a small quota.
const SATURATING_PER_S: f64 = 60_000.0;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Amplitude of the swing, as a share of the threshold.
const SWING_SHARE: f64 = 0.2;
/// Rate of the burst, as a multiple of the threshold.
const BURST_TIMES: f64 = 1.5;

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Rounds of each course.
    pub rounds: usize,
    /// Number of sessions.
    pub connections: u32,
    /// Sessions of one group.
    pub group: u32,
    /// Length of the swinging course.
    pub swing: Duration,
    /// Time below the threshold, and time above it, in each swing.
    pub half_swing: Duration,
    /// Time before the burst.
    pub calm: Duration,
    /// Length of the burst.
    pub burst: Duration,
    /// Length of each calibration step.
    pub step: Duration,
}

impl Effort {
    /// The effort of a complete run, whose figures may be published.
    pub fn full() -> Effort {
        let s = Duration::from_secs;
        Effort {
            rounds: 5,
            connections: 200,
            group: 10,
            swing: s(60),
            half_swing: s(5),
            calm: s(5),
            burst: s(15),
            step: s(2),
        }
    }

    /// The effort of a quick run: about two minutes.
    pub fn quick() -> Effort {
        let s = Duration::from_secs;
        Effort { rounds: 1, swing: s(20), burst: s(10), calm: s(3), step: s(1), ..Effort::full() }
    }
}

/// Whether clients decide when relief starts and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Decides,
    Never,
}

impl Policy {
    fn name(self) -> &'static str {
        match self {
            Policy::Decides => "decides",
            Policy::Never => "never switches",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    Swing,
    Burst,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Baseline {
    sla_us: u64,
    /// Highest rate at which the p99 of direct sessions is within the SLA.
    threshold_per_s: f64,
    /// Saturated throughput of direct sessions, in replies a second.
    direct_per_s: f64,
    /// Saturated throughput of helped sessions, in replies a second.
    helped_per_s: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct RunResult {
    /// Moves of all sessions, divided by the number of sessions.
    switches_per_client: f64,
    /// Total length of bins with a p99 over the SLA, since the start of the burst or of the swing.
    over_sla_ms: u64,
    /// Time from the start of the burst until three seconds in a row have a p99 within the SLA.
    relieved_ms: Option<u64>,
    /// Time from the start of the burst to the first decision.
    decided_ms: Option<u64>,
    /// Median time from the start of the burst to a group's decision to move all of its sessions.
    all_moving_ms: Option<u64>,
    /// [`crate::relief::drain_floor_ms`] for the backlog that gathers until `all_moving_ms`.
    floor_ms: Option<f64>,
    on_time_share: f64,
    /// Late spans, in seconds since the burst or the swing began.
    late_spans: String,
    /// Number of decisions by name, since the burst or the swing began.
    decisions: BTreeMap<String, u32>,
    spoilt: Option<String>,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let stage = Stage::create_with("activation", setting, MiddleHosts { count: HELPERS, quota: None })?;
    let _ = writeln!(
        out,
        "{}; {} sessions of {} processes, {HELPERS} helpers",
        setting.placement.description(),
        effort.connections,
        effort.connections.div_ceil(effort.group)
    );
    let pair = stage.pair(ProtocolKind::Memcached, &[64])?;
    let kind = HelperKind { library: true, batch: "adaptive", max_delay: setting.max_delay };
    let helpers = stage.helpers(pair.link, &kind)?;
    stage.server.set_quota(setting.quota)?;
    let mut setup = Setup { effort, stage: &stage, pair, helpers, tally: Tally::default(), out };
    let baseline = setup.calibrate()?;
    let mut series: Vec<(Course, Policy, Vec<RunResult>)> = [Course::Swing, Course::Burst]
        .into_iter()
        .flat_map(|course| [Policy::Decides, Policy::Never].map(|policy| (course, policy, Vec::new())))
        .collect();
    let mut machine = stage.machine(&[("memcached", "-V")])?;
    let outcome = measurement_order(effort.rounds, series.len()).try_for_each(|(round, index)| {
        let (course, policy, runs) = &mut series[index];
        runs.push(setup.run(round, *course, *policy, &baseline)?);
        Ok(())
    });
    let Setup { tally, helpers, .. } = setup;
    drop(helpers);
    let outcome = outcome.and_then(|()| stage.close());
    machine.lab.insert(QUOTA_ENTRY.into(), quota_text(setting.quota));
    let mut results = Results::new("activation", machine);
    findings::add_results(&series, &baseline, effort, &mut results);
    results.checks = tally.checks();
    Ok(results.with_outcome(outcome))
}

struct Setup<'a> {
    effort: &'a Effort,
    stage: &'a Stage,
    pair: Pair,
    helpers: Vec<Helper>,
    tally: Tally,
    out: &'a mut dyn Write,
}

impl<'a> Setup<'a> {
    fn routes(&self, has_helpers: bool) -> Routes {
        let addresses = self.helpers.iter().filter(|_| has_helpers).map(|helper| helper.address);
        Routes {
            helpers: addresses.collect(),
            standby: false,
            link: Some(self.pair.link),
            sessions_per_process: None,
            key: self.stage.client_key().to_owned(),
        }
    }

    fn clients(&self, routes: Routes, sla_us: u64) -> Clients {
        let server = self.pair.shimmed.address();
        let plain = self.stage.clients(server, &Traffic::default(), self.effort.connections);
        Clients { sessions: Some(routes), sla: Duration::from_micros(sla_us), ..plain }
    }

    fn session(&self, routes: Routes) -> Result<Session<'a>, Error> {
        self.stage.session_of(&self.clients(routes, 1_000), &Traffic::default())
    }

    /// Measures the SLA, the threshold, and the saturated throughput of direct and of helped sessions.
    fn calibrate(&mut self) -> Result<Baseline, Error> {
        let (settle, length) = (Duration::from_millis(300), self.effort.step);
        let mut direct = self.session(self.routes(false))?;
        // The lowest p99 counts: one raised by a stall would set an SLA that is kept at any rate.
        let mut lowest_us: Option<u64> = None;
        for _ in 0..LIGHT_STEPS {
            let step = direct.step(LIGHT_PER_S, settle, length, None)?.step;
            lowest_us = lowest_us.into_iter().chain(step.span.p99_us()).min();
        }
        let sla_us = sla_us(lowest_us.unwrap_or(0));
        let mut threshold_per_s = LIGHT_PER_S;
        let mut rate = SEARCH_FROM_PER_S;
        let mut misses = 0;
        // The machine may have delayed one late step; a second one at the same rate ends the search.
        while misses < 2 && rate < SEARCH_MAX_PER_S {
            let step = direct.step(rate, settle, length, None)?.step;
            if step.span.keeps(sla_us) {
                (threshold_per_s, misses) = (rate, 0);
                rate *= SEARCH_FACTOR;
            } else {
                misses += 1;
            }
        }
        let direct_per_s = self.saturate(direct)?;
        let helped = Routes { link: None, ..self.routes(true) };
        let helped_per_s = self.session(helped).and_then(|session| self.saturate(session))?;
        let baseline = Baseline { sla_us, threshold_per_s, direct_per_s, helped_per_s };
        let _ = writeln!(
            self.out,
            "SLA {:.1} ms; threshold {threshold_per_s:.0}/s; saturated {direct_per_s:.0}/s direct, \
             {helped_per_s:.0}/s helped",
            sla_us as f64 / 1000.0
        );
        Ok(baseline)
    }

    fn saturate(&mut self, mut session: Session<'a>) -> Result<f64, Error> {
        let step = session.step(SATURATING_PER_S, Duration::from_millis(500), self.effort.step, None)?.step;
        session.generators().quiesce(DRAIN_TIMEOUT)?;
        self.tally.add(&session.finish()?);
        Ok(step.replies_per_s)
    }

    fn run(
        &mut self,
        round: usize,
        course: Course,
        policy: Policy,
        baseline: &Baseline,
    ) -> Result<RunResult, Error> {
        let mut routes = self.routes(policy == Policy::Decides);
        routes.sessions_per_process = (policy == Policy::Decides).then_some(self.effort.group);
        let (schedule, measured_from, length) = self.schedule(course, baseline);
        let clients = Clients { schedule, duration: Some(length), ..self.clients(routes, baseline.sla_us) };
        let mut session = self.stage.session_of(&clients, &Traffic::default())?;
        let to_ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (from_ms, end_ms) = (to_ms(measured_from), to_ms(length));
        session.generators().sleep_until_ms(from_ms);
        let before = self.stage.snapshot(None)?;
        session.generators().sleep_until_ms(end_ms);
        let used = self.stage.snapshot(None)?.since(&before);
        let report = session.report()?;
        self.pair.check()?;
        self.helpers.iter_mut().try_for_each(Helper::check)?;
        self.tally.add_report(&report);
        // Lag is not checked: connections that wait for late replies lag behind their schedule without a fault of the
        // client.
        let spoilt = spoilt_by(&used, 0).or_else(|| stopped(&used));
        let result = RunResult { spoilt, ..RunResult::of(&report, (from_ms, end_ms), course, baseline) };
        print_round(self.out, round, course, policy, &result);
        Ok(result)
    }

    /// The offered rates by time, the start of the measured span, and the length of the course.
    fn schedule(&self, course: Course, baseline: &Baseline) -> (Vec<(Duration, Order)>, Duration, Duration) {
        let Effort { swing, half_swing, calm, burst, .. } = *self.effort;
        match course {
            Course::Swing => {
                let halves = (swing.as_millis() / half_swing.as_millis().max(1)) as u32;
                let rate = |half: u32| match half % 2 {
                    0 => baseline.threshold_per_s * (1.0 - SWING_SHARE),
                    _ => baseline.threshold_per_s * (1.0 + SWING_SHARE),
                };
                let orders = (0..halves).map(|half| (half_swing * half, Order::Rate(rate(half))));
                (orders.collect(), Duration::ZERO, half_swing * halves)
            }
            Course::Burst => {
                let low = Order::Rate(baseline.threshold_per_s * 0.3);
                let high = Order::Rate(baseline.threshold_per_s * BURST_TIMES);
                (vec![(Duration::ZERO, low), (calm, high)], calm, calm + burst)
            }
        }
    }
}

impl RunResult {
    fn of(report: &Report, (from_ms, end_ms): (u64, u64), course: Course, baseline: &Baseline) -> RunResult {
        let is_late = |from: u64| !Span::of(&report.bins, from, from + GRID_MS).keeps(baseline.sla_us);
        let late: Vec<bool> = (from_ms..end_ms).step_by(GRID_MS as usize).map(is_late).collect();
        let late_bins = late.iter().filter(|late| **late).count() as u64;
        let moves: u64 = report.bins.iter().map(|bin| bin.carrier_changes).sum();
        // Sorted by time. A group that decides twice counts twice; such groups are few.
        let mut decisions_by_time: Vec<(u64, &str)> =
            report.decisions.iter().filter_map(|line| decided_after(line, from_ms)).collect();
        decisions_by_time.sort_unstable();
        let group_moves_ms: Vec<u64> = decisions_by_time
            .iter()
            .filter(|(_, name)| *name == findings::ALL_MOVE)
            .map(|(at_ms, _)| *at_ms)
            .collect();
        let all_moving_ms = group_moves_ms.get(group_moves_ms.len() / 2).copied();
        let mut decisions = BTreeMap::new();
        for (_, name) in &decisions_by_time {
            *decisions.entry((*name).to_owned()).or_default() += 1;
        }
        let floor_ms = all_moving_ms.filter(|_| course == Course::Burst).and_then(|lasted_ms| {
            let burst = baseline.threshold_per_s * BURST_TIMES;
            let lasted_s = lasted_ms as f64 / 1000.0;
            crate::relief::drain_floor_ms(burst, baseline.direct_per_s, baseline.helped_per_s, lasted_s)
        });
        RunResult {
            switches_per_client: moves as f64 / f64::from(report.connections.max(1)),
            over_sla_ms: late_bins * GRID_MS,
            relieved_ms: relief_ms(&report.bins, from_ms, end_ms, baseline.sla_us),
            decided_ms: decisions_by_time.first().map(|(at_ms, _)| *at_ms),
            all_moving_ms,
            floor_ms,
            on_time_share: Span::of(&report.bins, from_ms, end_ms).on_time_share(baseline.sla_us),
            late_spans: spans(&late),
            decisions,
            spoilt: None,
        }
    }
}

/// Parses a decision of a report, `1.234 s: group 3: name: …`. Returns its time in ms after `from_ms`, and its name;
/// `None` for an earlier one.
fn decided_after(line: &str, from_ms: u64) -> Option<(u64, &str)> {
    let (seconds, rest) = line.split_once(" s: ")?;
    let at_ms = (seconds.parse::<f64>().ok()? * 1000.0) as u64;
    let name = rest.split(": ").nth(1)?;
    Some((at_ms.checked_sub(from_ms)?, name))
}

/// Formats the spans of `true` values, one value for each step of the grid: `0.2–0.9, 3.1–3.2`, in seconds.
fn spans(values: &[bool]) -> String {
    let seconds = |steps: usize| format!("{:.1}", steps as f64 * GRID_MS as f64 / 1000.0);
    let mut steps = 0;
    let runs = values.chunk_by(|a, b| a == b).filter_map(|run| {
        steps += run.len();
        run[0].then(|| format!("{}–{}", seconds(steps - run.len()), seconds(steps)))
    });
    runs.collect::<Vec<_>>().join(", ")
}

fn print_round(out: &mut dyn Write, round: usize, course: Course, policy: Policy, result: &RunResult) {
    let spoilt = spoilt_suffix(result.spoilt.as_deref());
    let ms = |value: Option<u64>| value.map_or("–".into(), |ms| format!("{ms} ms"));
    print_line(
        out,
        format_args!(
            "round {}: {course:?}, {}: {:.2} switches a client, late for {} ms, {:.1} % on time; first decision after {}, \
             all moving after {}{spoilt}",
            round + 1,
            policy.name(),
            result.switches_per_client,
            result.over_sla_ms,
            result.on_time_share * 100.0,
            ms(result.decided_ms),
            ms(result.all_moving_ms),
        ),
    );
    let decisions: Vec<String> =
        result.decisions.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let or_dash = |text: &str| if text.is_empty() { "–".to_owned() } else { text.to_owned() };
    let (late, decisions) = (or_dash(&result.late_spans), or_dash(&decisions.join(", ")));
    print_line(out, format_args!("    late at {late} s; decisions: {decisions}"));
}

const _: () = assert!(BIN_MS == GRID_MS, "the bins of a report should be the grid of recovery");
