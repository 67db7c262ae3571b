//! p99 against the offered rate, for GET and SET, direct and with one helper or more (PostMan, Figure 6); and the range
//! of rates in which helping lowers the p99.
//!
//! The server's host has a quota, so that it is the bottleneck. Rounds are interleaved: each measures every system
//! once, in rotating order, from the lowest rate up to the first with a p99 above the useful limit.

mod findings;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_load::config::ProtocolKind;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::curves::{Point, USEFUL_LIMIT_US};
use crate::experiments::common::rounds::{measurement_order, print_line, spoilt_suffix};
use crate::generator::{Clients, Traffic};
use crate::goodput::Tally;
use crate::measure::{Step, Used, measure_until_valid, too_busy};
use crate::results::Results;
use crate::scene::{Setting, quota_text};
use crate::stage::{Helper, HelperKind, MiddleHosts, Pair, QUOTA_ENTRY, Session, Stage};
use crate::table::milliseconds;

const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// A step with a higher p99, in µs, is spoilt if a stall of the machine may explain it.
const SLA_US: u64 = 1_000;
const MOVE_RATE_PER_S: f64 = 1_500.0;
/// A curve ends after this number of spoilt rates in a row: higher ones would be spoilt too.
const SPOILT_RATES_MAX: usize = 2;

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Number of rounds.
    pub rounds: usize,
    /// Offered rates, rising, in requests a second.
    pub rates: Vec<f64>,
    /// Numbers of helpers.
    pub helpers: Vec<usize>,
    /// Connections over all helpers.
    pub connections: u32,
    /// Pause after each change of rate.
    pub settle: Duration,
    /// Length of each measurement.
    pub length: Duration,
    /// Maximum number of attempts at a spoilt measurement, the first included.
    pub attempts_max: u32,
}

impl Effort {
    /// The effort of a complete run, whose figures may be published.
    pub fn full() -> Effort {
        Effort {
            rounds: 5,
            rates: [1, 2, 3, 4, 6, 9, 13, 18, 25, 35].map(|thousands| f64::from(thousands) * 1_000.0).into(),
            helpers: vec![1, 2, 3],
            connections: 660,
            settle: Duration::from_millis(300),
            length: Duration::from_millis(1_500),
            attempts_max: 3,
        }
    }

    /// The effort of a quick run: about two minutes.
    pub fn quick() -> Effort {
        Effort {
            rounds: 3,
            rates: vec![1_000.0, 3_000.0, 9_000.0],
            helpers: vec![1, 3],
            settle: Duration::from_millis(200),
            length: Duration::from_millis(700),
            attempts_max: 1,
            ..Effort::full()
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Get,
    Set,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Operation::Get => "get",
            Operation::Set => "set",
        }
    }

    fn traffic(self) -> Traffic {
        let get_ratio = if self == Operation::Get { 1.0 } else { 0.0 };
        Traffic { get_ratio, ..Traffic::default() }
    }
}

#[derive(Clone, Debug)]
struct Series {
    operation: Operation,
    /// Number of helpers; 0 is direct.
    helpers: usize,
    rounds: Vec<Curve>,
}

/// Results of a round, for each rate; no step beyond the end of the curve.
type Curve = Vec<(Point, Option<Step>)>;

impl Series {
    fn system(&self) -> String {
        match self.helpers {
            0 => "direct".into(),
            1 => "1 helper".into(),
            more => format!("{more} helpers"),
        }
    }
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let count = effort.helpers.iter().copied().max().unwrap_or(1).max(1);
    let stage = Stage::create_with("latency", setting, MiddleHosts { count, quota: None })?;
    let _ = writeln!(out, "{}; {} connections", setting.placement.description(), effort.connections);
    let pair = stage.pair(ProtocolKind::Memcached, &[64])?;
    // Not Algorithm 1: under evenly spaced requests its interval can stay at any value up to its cap.
    let kind = HelperKind { library: true, batch: "fixed", max_delay: setting.max_delay };
    let helpers = stage.helpers(pair.link, &kind)?;
    stage.server.set_quota(setting.quota)?;
    let mut course = Course { setting, effort, stage: &stage, pair, helpers, tally: Tally::default(), out };
    let mut series: Vec<Series> = Vec::new();
    for operation in [Operation::Get, Operation::Set] {
        let numbers = std::iter::once(0).chain(effort.helpers.iter().copied());
        series.extend(numbers.map(|helpers| Series { operation, helpers, rounds: Vec::new() }));
    }
    let mut machine = stage.machine(&[("memcached", "-V")])?;
    let outcome = measurement_order(effort.rounds, series.len()).try_for_each(|(round, index)| {
        let curve = course.measure_curve(round, &series[index])?;
        series[index].rounds.push(curve);
        Ok(())
    });
    let Course { tally, helpers, .. } = course;
    drop(helpers);
    let outcome = outcome.and_then(|()| stage.close());
    machine.lab.insert(QUOTA_ENTRY.into(), quota_text(setting.quota));
    let cores = setting.placement.helper_cores_text(count);
    let helpers = format!("1 thread each, a batch each {:?}; {cores}", setting.max_delay);
    machine.lab.insert("helpers".into(), helpers);
    let mut results = Results::new("load-latency", machine);
    findings::add_results(&series, effort, &mut results);
    results.checks = tally.checks();
    Ok(results.with_outcome(outcome))
}

struct Course<'a> {
    setting: &'a Setting,
    effort: &'a Effort,
    stage: &'a Stage,
    pair: Pair,
    helpers: Vec<Helper>,
    tally: Tally,
    out: &'a mut dyn Write,
}

impl<'a> Course<'a> {
    /// Measures one system from the lowest rate upwards. Returns a point for each rate.
    fn measure_curve(&mut self, round: usize, series: &Series) -> Result<Curve, Error> {
        let mut session = self.start_clients(series)?;
        let mut curve = Curve::new();
        let mut spoilt_in_a_row = 0;
        for &rate in &self.effort.rates {
            let (point, step) = self.measure_point(&mut session, rate, series)?;
            print_round(self.out, round, series, &point, &step);
            spoilt_in_a_row = if matches!(point, Point::Spoilt(_)) { spoilt_in_a_row + 1 } else { 0 };
            let is_end =
                matches!(point, Point::Over | Point::Limit(_)) || spoilt_in_a_row == SPOILT_RATES_MAX;
            curve.push((point, Some(step)));
            if is_end {
                break;
            }
        }
        // Rates beyond the end of the curve get the point of its end.
        if let Some((end, _)) = curve.last() {
            let end_point = match end {
                Point::Spoilt(why) => Point::Limit(format!("lower rates were spoilt already: {why}")),
                end => end.clone(),
            };
            curve.resize(self.effort.rates.len(), (end_point, None));
        }
        session.generators().quiesce(DRAIN_TIMEOUT)?;
        self.tally.add(&session.finish()?);
        self.pair.check()?;
        self.helpers.iter_mut().try_for_each(Helper::check)?;
        Ok(curve)
    }

    fn start_clients(&self, series: &Series) -> Result<Session<'a>, Error> {
        let traffic = series.operation.traffic();
        let server = if series.helpers == 0 { &self.pair.plain } else { &self.pair.shimmed };
        let plain = self.stage.clients(server.address(), &traffic, self.effort.connections);
        let helpers: Vec<SocketAddr> = self.helpers_of(series).iter().map(|helper| helper.address).collect();
        let helpers = (!helpers.is_empty()).then(|| (helpers, self.stage.client_key().to_owned()));
        let clients = Clients { helpers, pace: self.setting.pace, ..plain };
        let mut session = self.stage.session_of(&clients, &traffic)?;
        if series.helpers > 0 {
            session.move_to_helper(MOVE_RATE_PER_S)?;
        }
        Ok(session)
    }

    fn helpers_of(&self, series: &Series) -> &[Helper] {
        &self.helpers[..series.helpers.min(self.helpers.len())]
    }

    fn measure_point(
        &self,
        session: &mut Session<'_>,
        rate: f64,
        series: &Series,
    ) -> Result<(Point, Step), Error> {
        let Effort { settle, length, attempts_max, .. } = *self.effort;
        measure_until_valid(
            attempts_max,
            || {
                let step = session.step(rate, settle, length, self.helpers_of(series))?.step;
                Ok((classify(&step, self.setting, series.helpers), step))
            },
            |(point, _)| !matches!(point, Point::Spoilt(_)),
        )
    }
}

fn classify(step: &Step, setting: &Setting, helpers: usize) -> Point {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let helper_cores: BTreeSet<usize> =
        (0..helpers).map(|n| setting.placement.helper_core(n, cores)).collect();
    // Helpers on several cores share the work evenly; the limit holds for one core.
    let used = Used { helper_s: step.used.helper_s / helper_cores.len().max(1) as f64, ..step.used };
    let step = Step { used, ..step.clone() };
    if let Some(why) = too_busy(&step.used) {
        return Point::Limit(why);
    }
    match (step.spoilt(setting.quota, SLA_US), step.span.p99_us()) {
        (Some(why), _) => Point::Spoilt(why),
        (None, Some(us)) if us <= USEFUL_LIMIT_US => Point::P99(us),
        (None, _) => Point::Over,
    }
}

fn print_round(out: &mut dyn Write, round: usize, series: &Series, point: &Point, step: &Step) {
    let verdict = match point {
        Point::P99(_) => String::new(),
        Point::Over => format!(" (p99 above {USEFUL_LIMIT_US} µs, or over 1 % unanswered)"),
        Point::Spoilt(why) => spoilt_suffix(Some(why)),
        Point::Limit(why) => format!(" (not measurable on this machine: {why})"),
    };
    let p99 = milliseconds(step.span.p99_us(), "without a reply");
    print_line(
        out,
        format_args!(
            "round {}: {}, {} at {}/s: p99 {p99}; server {:.1} % of a core, helpers {:.0} %, clients {:.0} %{verdict}",
            round + 1,
            series.operation.name(),
            series.system(),
            step.rate_per_s,
            step.used.server_percent(),
            step.used.percent(step.used.helper_s),
            step.used.percent(step.used.clients_s),
        ),
    );
}
