//! What more helpers give when the server is not the limit: messages a second against the number of helpers, each with a
//! quota of its own so that cores last (PostMan, Figure 10); and what a request costs them.
//!
//! And how evenly clients spread over helpers that choose one for themselves, all at the same moment.
//!
//! The server echoes on the server library and has no quota: batches cost it little. Each helper has as many closed loops,
//! which keep it busy. Rounds are interleaved.

mod findings;
mod spread;

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_lab::Quota;
use spillway_load::config::Speech;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{Rounds, say, spoilt_words, turns};
use crate::experiments::common::saturation::{limit, spoilt};
use crate::generator::{Clients, Traffic};
use crate::goodput::Tally;
use crate::measure::again;
use crate::results::Results;
use crate::scene::{Setting, quota_words};
use crate::stage::{Echo, Helper, HelperKind, Middles, Session, Stage, Taken};

/// With their defaults.
const HELPERS: HelperKind =
    HelperKind { library: true, batch: "adaptive", max_delay: Duration::from_micros(200) };
/// As notes call the limiting hosts.
const WHO: &str = "the helpers";

/// How much is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Rounds.
    pub rounds: usize,
    /// Numbers of helpers; the first is what the others are compared with.
    pub counts: Vec<usize>,
    /// Closed loops for each helper.
    pub connections_each: u32,
    /// What each helper may use.
    pub quota: Quota,
    /// Before each measurement.
    pub settle: Duration,
    /// Of each measurement.
    pub length: Duration,
    /// A spoilt measurement is done so many times in all.
    pub tries: u32,
    /// How often clients arrive that choose for themselves.
    pub arrivals: usize,
    /// How many of them.
    pub clients: u32,
    /// Over how many helpers.
    pub spread_over: usize,
    /// How many helpers each asks for their load.
    pub asked: Vec<usize>,
}

impl Effort {
    /// What figures need.
    pub fn full() -> Effort {
        Effort {
            rounds: 9,
            counts: vec![1, 2, 3, 4],
            connections_each: 100,
            quota: Quota { percent_of_core: 10.0, period: Duration::from_millis(20) },
            settle: Duration::from_millis(500),
            length: Duration::from_millis(1_500),
            tries: 3,
            arrivals: 9,
            clients: 1_000,
            spread_over: 4,
            asked: vec![1, 2],
        }
    }

    /// What two minutes allow.
    pub fn quick() -> Effort {
        Effort {
            rounds: 3,
            settle: Duration::from_millis(300),
            length: Duration::from_millis(800),
            tries: 2,
            arrivals: 3,
            ..Effort::full()
        }
    }
}

/// One number of helpers.
#[derive(Clone, Debug)]
struct Series {
    count: usize,
    rounds: Rounds<Seen>,
}

/// What one round saw.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    messages_per_s: f64,
    /// CPU time of all helpers' hosts for each message, in µs; and of the server's.
    helper_us: f64,
    server_us: f64,
    /// Of the server's core, in percent.
    server_percent: f64,
    messages_per_batch: Option<f64>,
    limit: Option<String>,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs it with so much effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let count = effort.counts.iter().copied().max().unwrap_or(1).max(1);
    let quota = Some(effort.quota);
    let stage = Stage::set_with("helpers", setting, Middles { count, quota })?;
    let on = setting.placement.helper_words(count);
    let _ = writeln!(out, "helpers {on}; each: {}", quota_words(quota));
    let echo = stage.echo()?;
    let helpers = stage.helpers(echo.link, &HELPERS)?;
    let mut course = Course { effort, stage: &stage, echo, helpers, tally: Tally::default(), out: &mut *out };
    let one = |&count: &usize| Series { count, rounds: Rounds::default() };
    let mut series: Vec<Series> = effort.counts.iter().map(one).collect();
    let mut machine = stage.machine(&[])?;
    let ended = turns(effort.rounds, series.len())
        .try_for_each(|(round, at)| course.turn(round, &mut series[at]).map(drop));
    let Course { mut tally, echo, helpers, .. } = course;
    drop((echo, helpers));
    let ended = ended.and_then(|()| stage.close()).and_then(|()| spread::run(setting, effort, out));
    let (spreads, ended) = match ended {
        Ok((spreads, arrived)) => {
            tally.add(&arrived);
            (spreads, Ok(()))
        }
        Err(error) => (Vec::new(), Err(error)),
    };
    machine.server = "echo server of the server library".into();
    machine.lab.insert("quota of each helper's host".into(), quota_words(quota));
    machine.lab.insert("helpers".into(), format!("1 thread each; {on}"));
    let loops = format!("{} closed loops for each helper, 64 B", effort.connections_each);
    machine.lab.insert("connections".into(), loops);
    let mut results = Results::new("helpers", machine);
    findings::state(&series, &mut results);
    spread::state(&spreads, effort, &mut results);
    results.checks = tally.checks();
    Ok(results.after(ended))
}

struct Course<'a> {
    effort: &'a Effort,
    stage: &'a Stage,
    echo: Echo,
    helpers: Vec<Helper>,
    tally: Tally,
    out: &'a mut dyn Write,
}

impl<'a> Course<'a> {
    /// One number of helpers in one round.
    fn turn(&mut self, round: usize, series: &mut Series) -> Result<(), Error> {
        // Moving is not what is limited.
        self.set_quota(None)?;
        let mut session = self.start(series.count)?;
        self.set_quota(Some(self.effort.quota))?;
        let Effort { settle, length, tries, .. } = *self.effort;
        series.rounds.take(again(
            tries,
            || {
                let taken = session.step(0.0, settle, length, &self.helpers[..series.count])?;
                let share = self.quota_share(&taken, series.count);
                let seen = Seen::of(&taken, share);
                let spoilt = spoilt(&taken.step.used, WHO, share);
                tell(self.out, round, series.count, &seen, spoilt.as_deref());
                Ok((seen, spoilt))
            },
            |(_, spoilt)| spoilt.is_none(),
        )?);
        self.set_quota(None)?;
        self.tally.add(&session.finish()?);
        self.echo.check()?;
        self.helpers.iter_mut().try_for_each(Helper::check)
    }

    /// Clients of so many helpers, all moved there.
    fn start(&self, count: usize) -> Result<Session<'a>, Error> {
        let traffic = Traffic { speech: Speech::Echo, closed: true, ..Traffic::default() };
        let connections = self.effort.connections_each * count as u32;
        let addresses: Vec<SocketAddr> = self.helpers[..count].iter().map(|helper| helper.address).collect();
        let helpers = Some((addresses, self.stage.client_key().to_owned()));
        let clients = Clients { helpers, ..self.stage.clients(self.echo.plain, &traffic, connections) };
        let mut session = self.stage.session_of(&clients, &traffic)?;
        session.move_to_helper(0.0)?;
        Ok(session)
    }

    fn set_quota(&self, quota: Option<Quota>) -> Result<(), Error> {
        self.stage.middles().try_for_each(|host| Ok(host.set_quota(quota)?))
    }

    /// How much of their quotas so many helpers used, 0 to 1.
    fn quota_share(&self, taken: &Taken, count: usize) -> f64 {
        let used = &taken.step.used;
        used.percent(used.helper_s) / (self.effort.quota.percent_of_core * count.max(1) as f64)
    }
}

impl Seen {
    fn of(taken: &Taken, share: f64) -> Seen {
        let used = &taken.step.used;
        let served = taken.step.span.served as f64;
        Seen {
            messages_per_s: served / used.seconds,
            helper_us: used.helper_s * 1e6 / served,
            server_us: used.server_s() * 1e6 / served,
            server_percent: used.server_percent(),
            messages_per_batch: used.messages_per_batch(),
            limit: limit(used, WHO, share),
        }
    }
}

fn tell(out: &mut dyn Write, round: usize, count: usize, seen: &Seen, spoilt: Option<&str>) {
    let limit = seen.limit.as_ref().map_or(String::new(), |limit| format!(" ({limit})"));
    let spoilt = spoilt_words(spoilt);
    say(
        out,
        format_args!(
            "round {}: helpers {count}: {:.0} messages/s, {:.1} µs of their CPU and {:.2} of the server's for \
             each{limit}{spoilt}",
            round + 1,
            seen.messages_per_s,
            seen.helper_us,
            seen.server_us,
        ),
    );
}
