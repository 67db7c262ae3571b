//! How long requests take at which load: p99 against the offered rate, GET and SET, direct and with one helper or more
//! (PostMan, Figure 6); where helping begins to pay, and where it ends.
//!
//! The server's host has a quota, so that it is the bottleneck. Rounds are interleaved: each asks every system once, in
//! turning order, from the lowest rate upwards until replies come too late for anybody.

mod findings;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_load::config::Speech;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::curves::{Point, USELESS_US};
use crate::experiments::common::rounds::{say, spoilt_words, turns};
use crate::generator::{Clients, Traffic};
use crate::goodput::Tally;
use crate::measure::{Step, Used, again, too_busy};
use crate::results::Results;
use crate::scene::{Setting, quota_words};
use crate::stage::{Helper, HelperKind, Middles, Pair, QUOTA, Session, Stage};
use crate::table::milliseconds;

/// After an overload, for its backlog.
const QUIET_WITHIN: Duration = Duration::from_secs(5);
/// A p99 above it is looked at: a stall of the machine may explain it.
const SLA_US: u64 = 1_000;
/// Offered while connections move.
const MOVING_PER_S: f64 = 1_500.0;
/// A curve ends after so many spoilt rates in a row: higher ones would be, too.
const SPOILT_RATES_MAX: usize = 2;

/// How much is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Rounds.
    pub rounds: usize,
    /// Offered rates, rising, in requests a second.
    pub rates: Vec<f64>,
    /// Numbers of helpers.
    pub helpers: Vec<usize>,
    /// Over all helpers.
    pub connections: u32,
    /// After each change of rate.
    pub settle: Duration,
    /// Of each measurement.
    pub length: Duration,
    /// A spoilt measurement is done so many times in all.
    pub tries: u32,
}

impl Effort {
    /// What figures need.
    pub fn full() -> Effort {
        Effort {
            rounds: 5,
            rates: [1, 2, 3, 4, 6, 9, 13, 18, 25, 35].map(|thousands| f64::from(thousands) * 1_000.0).into(),
            helpers: vec![1, 2, 3],
            connections: 660,
            settle: Duration::from_millis(300),
            length: Duration::from_millis(1_500),
            tries: 3,
        }
    }

    /// What two minutes allow.
    pub fn quick() -> Effort {
        Effort {
            rounds: 3,
            rates: vec![1_000.0, 3_000.0, 9_000.0],
            helpers: vec![1, 3],
            settle: Duration::from_millis(200),
            length: Duration::from_millis(700),
            tries: 1,
            ..Effort::full()
        }
    }
}

/// What is asked for.
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

/// One operation by one way.
#[derive(Clone, Debug)]
struct Series {
    operation: Operation,
    /// How many; 0 is direct.
    helpers: usize,
    rounds: Vec<Curve>,
}

/// What a round saw, rate by rate.
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

/// Runs it with so much effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let count = effort.helpers.iter().copied().max().unwrap_or(1).max(1);
    let stage = Stage::set_with("latency", setting, Middles { count, quota: None })?;
    let _ = writeln!(out, "{}; {} connections", setting.placement.words(), effort.connections);
    let pair = stage.pair(Speech::Memcached, &[64])?;
    // Algorithm 1 leaves its interval wherever evenly spaced requests found it, anywhere up to its cap.
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
    let ended = turns(effort.rounds, series.len()).try_for_each(|(round, at)| {
        let curve = course.curve(round, &series[at])?;
        series[at].rounds.push(curve);
        Ok(())
    });
    let Course { tally, helpers, .. } = course;
    drop(helpers);
    let ended = ended.and_then(|()| stage.close());
    machine.lab.insert(QUOTA.into(), quota_words(setting.quota));
    let words = format!("1 thread each, a batch each {:?}", setting.max_delay);
    machine.lab.insert("helpers".into(), format!("{words}; {}", setting.placement.helper_words(count)));
    let mut results = Results::new("load-latency", machine);
    findings::state(&series, effort, &mut results);
    results.checks = tally.checks();
    Ok(results.after(ended))
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
    /// One system from the lowest rate upwards. Has a point for each rate.
    fn curve(&mut self, round: usize, series: &Series) -> Result<Curve, Error> {
        let mut session = self.start(series)?;
        let mut curve = Curve::new();
        let mut spoilt_in_a_row = 0;
        for &rate in &self.effort.rates {
            let (point, step) = self.point(&mut session, rate, series)?;
            tell(self.out, round, series, &point, &step);
            spoilt_in_a_row = if matches!(point, Point::Spoilt(_)) { spoilt_in_a_row + 1 } else { 0 };
            let ends = matches!(point, Point::Over | Point::Limit(_)) || spoilt_in_a_row == SPOILT_RATES_MAX;
            curve.push((point, Some(step)));
            if ends {
                break;
            }
        }
        // What is beyond the end is as the end was.
        if let Some((end, _)) = curve.last() {
            let beyond = match end {
                Point::Spoilt(why) => Point::Limit(format!("lower rates were spoilt already: {why}")),
                end => end.clone(),
            };
            curve.resize(self.effort.rates.len(), (beyond, None));
        }
        session.generators().quiesce(QUIET_WITHIN)?;
        self.tally.add(&session.finish()?);
        self.pair.check()?;
        self.helpers.iter_mut().try_for_each(Helper::check)?;
        Ok(curve)
    }

    /// Clients of a system, connected, and moved where they are helped.
    fn start(&self, series: &Series) -> Result<Session<'a>, Error> {
        let traffic = series.operation.traffic();
        let server = if series.helpers == 0 { &self.pair.plain } else { &self.pair.shimmed };
        let plain = self.stage.clients(server.address(), &traffic, self.effort.connections);
        let helpers: Vec<SocketAddr> = self.through(series).iter().map(|helper| helper.address).collect();
        let helpers = (!helpers.is_empty()).then(|| (helpers, self.stage.client_key().to_owned()));
        let clients = Clients { helpers, pace: self.setting.pace, ..plain };
        let mut session = self.stage.session_of(&clients, &traffic)?;
        if series.helpers > 0 {
            session.move_to_helper(MOVING_PER_S)?;
        }
        Ok(session)
    }

    /// The helpers of a system.
    fn through(&self, series: &Series) -> &[Helper] {
        &self.helpers[..series.helpers.min(self.helpers.len())]
    }

    fn point(&self, session: &mut Session<'_>, rate: f64, series: &Series) -> Result<(Point, Step), Error> {
        let Effort { settle, length, tries, .. } = *self.effort;
        again(
            tries,
            || {
                let step = session.step(rate, settle, length, self.through(series))?.step;
                Ok((judge(&step, self.setting, series.helpers), step))
            },
            |(point, _)| !matches!(point, Point::Spoilt(_)),
        )
    }
}

fn judge(step: &Step, setting: &Setting, helpers: usize) -> Point {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let own: BTreeSet<usize> = (0..helpers).map(|n| setting.placement.helper_core(n, cores)).collect();
    // Helpers with cores of their own share the work evenly: what is judged is the core of one.
    let used = Used { helper_s: step.used.helper_s / own.len().max(1) as f64, ..step.used };
    let step = Step { used, ..step.clone() };
    if let Some(why) = too_busy(&step.used) {
        return Point::Limit(why);
    }
    match (step.spoilt(setting.quota, SLA_US), step.span.p99_us()) {
        (Some(why), _) => Point::Spoilt(why),
        (None, Some(us)) if us <= USELESS_US => Point::P99(us),
        (None, _) => Point::Over,
    }
}

fn tell(out: &mut dyn Write, round: usize, series: &Series, point: &Point, step: &Step) {
    let verdict = match point {
        Point::P99(_) => String::new(),
        Point::Over => " (later than is of use)".into(),
        Point::Spoilt(why) => spoilt_words(Some(why)),
        Point::Limit(why) => format!(" (the end of what this machine can show: {why})"),
    };
    let p99 = milliseconds(step.span.p99_us(), "without a reply");
    say(
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
