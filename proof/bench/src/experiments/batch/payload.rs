//! How much goes through at which payload: messages a second at saturation, direct and helped, for servers of a small and a
//! larger quota; and the payload up to which helping gives more (PostMan, Figure 8).
//!
//! The server echoes, as the paper's ping-pong does: there is nothing but packets to process. Clients are closed loops, as
//! many as it takes to saturate it. Rounds are interleaved: each asks both ways once at every payload, in turning order.

mod findings;

use std::io::Write;
use std::time::Duration;

use spillway_lab::Quota;
use spillway_load::config::Speech;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{Rounds, say, spoilt_words};
use crate::experiments::common::saturation::{limit, spoilt};
use crate::generator::Traffic;
use crate::goodput::Tally;
use crate::measure::again;
use crate::results::Results;
use crate::scene::Setting;
use crate::stage::{Echo, Helper, HelperKind, Middles, QUOTA, Stage, Taken};

/// Of the quotas. Nobody looks at latencies here, so that it may be long enough for small shares.
const PERIOD: Duration = Duration::from_millis(20);
/// For plain clients. A long delay, for what is asked is how much goes through.
const HELPER: HelperKind =
    HelperKind { library: false, batch: "fixed", max_delay: Duration::from_micros(1_000) };

/// As notes call the limiting host.
const WHO: &str = "the server";

/// How much is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Rounds.
    pub rounds: usize,
    /// Payloads, rising, in bytes.
    pub payloads: Vec<usize>,
    /// What the server may use, in percent of a core: the "one core" of this laboratory, and more.
    pub quotas_percent: Vec<f64>,
    /// Closed loops.
    pub connections: u32,
    /// Before each measurement.
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
            payloads: vec![64, 128, 256, 512, 1_024, 1_460, 2_048, 4_096, 8_192, 16_384, 32_768],
            quotas_percent: vec![5.0, 40.0],
            connections: 400,
            settle: Duration::from_millis(300),
            length: Duration::from_millis(1_000),
            tries: 3,
        }
    }

    /// What two minutes allow.
    pub fn quick() -> Effort {
        Effort {
            rounds: 3,
            payloads: vec![64, 1_024, 8_192],
            settle: Duration::from_millis(200),
            length: Duration::from_millis(600),
            tries: 2,
            ..Effort::full()
        }
    }
}

/// Which way messages take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Direct,
    Helped,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::Helped => "helped",
        }
    }
}

/// One way at one payload and quota.
#[derive(Clone, Debug)]
struct Series {
    way: Way,
    payload: usize,
    quota_percent: f64,
    rounds: Rounds<Seen>,
}

/// What one round saw.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    messages_per_s: f64,
    /// CPU time of the server's host for each, in µs.
    server_us: f64,
    /// Of its quota, 0 to 1.
    quota_share: f64,
    messages_per_batch: Option<f64>,
    /// Who else was busy, where the server was not the limit.
    limit: Option<String>,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs it with so much effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let stage = Stage::set_with("payload", setting, Middles { count: 1, quota: None })?;
    let _ = writeln!(out, "{}; {} closed loops", setting.placement.words(), effort.connections);
    let echo = stage.echo()?;
    let helper = stage.helpers(echo.link, &HELPER)?.remove(0);
    let mut course = Course { effort, stage: &stage, echo, helper, tally: Tally::default(), out };
    let mut series: Vec<Series> = Vec::new();
    for &payload in &effort.payloads {
        for way in [Way::Direct, Way::Helped] {
            series.extend(effort.quotas_percent.iter().map(|&quota_percent| Series {
                way,
                payload,
                quota_percent,
                rounds: Rounds::default(),
            }));
        }
    }
    // The quotas of one payload and way are asked one after the other, of the same clients.
    let quotas = effort.quotas_percent.len().max(1);
    let mut machine = stage.machine(&[])?;
    let ended = (0..effort.rounds).try_for_each(|round| {
        let mut turns: Vec<&mut [Series]> = series.chunks_mut(quotas).collect();
        let first = round % turns.len().max(1);
        turns.rotate_left(first);
        turns.into_iter().try_for_each(|turn| course.turn(round, turn).map(drop))
    });
    let Course { tally, echo, helper, .. } = course;
    drop((echo, helper));
    let ended = ended.and_then(|()| stage.close());
    machine.server = "echo server of the server library".into();
    machine
        .lab
        .insert(QUOTA.into(), format!("by row, in periods of {PERIOD:?}, process and interface together"));
    machine.lab.insert("helper".into(), format!("1 thread, a batch each {:?}", HELPER.max_delay));
    machine.lab.insert("connections".into(), format!("{} closed loops", effort.connections));
    let mut results = Results::new("payload", machine);
    findings::state(&series, effort, &mut results);
    results.checks = tally.checks();
    Ok(results.after(ended))
}

struct Course<'a> {
    effort: &'a Effort,
    stage: &'a Stage,
    echo: Echo,
    helper: Helper,
    tally: Tally,
    out: &'a mut dyn Write,
}

impl Course<'_> {
    /// All quotas of one way and payload.
    fn turn(&mut self, round: usize, quotas: &mut [Series]) -> Result<(), Error> {
        let Some(&Series { way, payload, .. }) = quotas.first() else { return Ok(()) };
        let traffic =
            Traffic { speech: Speech::Echo, value_size: payload, closed: true, ..Traffic::default() };
        let (target, helper) = match way {
            Way::Direct => (self.echo.plain, None),
            Way::Helped => (self.helper.address, Some(&self.helper)),
        };
        let Effort { settle, length, tries, .. } = *self.effort;
        // Connecting is not what is limited.
        self.stage.server.set_quota(None)?;
        let mut session = self.stage.session(target, &traffic, self.effort.connections)?;
        for series in quotas {
            let quota = Quota { percent_of_core: series.quota_percent, period: PERIOD };
            self.stage.server.set_quota(Some(quota))?;
            let found = again(
                tries,
                || {
                    let taken = session.step(0.0, settle, length, helper)?;
                    let seen = Seen::of(&taken, quota);
                    let spoilt = spoilt(&taken.step.used, WHO, seen.quota_share);
                    tell(self.out, round, series, &seen, spoilt.as_deref());
                    Ok((seen, spoilt))
                },
                |(_, spoilt)| spoilt.is_none(),
            )?;
            series.rounds.take(found);
        }
        self.stage.server.set_quota(None)?;
        self.tally.add(&session.finish()?);
        self.echo.check()?;
        self.helper.check()
    }
}

impl Seen {
    fn of(taken: &Taken, quota: Quota) -> Seen {
        let used = &taken.step.used;
        let served = taken.step.span.served as f64;
        let server_s = used.server_s();
        let quota_share = used.quota_share(Some(quota)).unwrap_or(0.0);
        Seen {
            messages_per_s: if used.seconds > 0.0 { served / used.seconds } else { 0.0 },
            server_us: if served > 0.0 { server_s * 1e6 / served } else { f64::NAN },
            quota_share,
            messages_per_batch: used.messages_per_batch(),
            limit: limit(used, WHO, quota_share),
        }
    }
}

fn tell(out: &mut dyn Write, round: usize, series: &Series, seen: &Seen, spoilt: Option<&str>) {
    let limit = seen.limit.as_ref().map_or(String::new(), |limit| format!(" ({limit})"));
    let spoilt = spoilt_words(spoilt);
    say(
        out,
        format_args!(
            "round {}: {} B {}, {} % of a core: {:.0} messages/s, {:.2} µs of server CPU each{limit}{spoilt}",
            round + 1,
            series.payload,
            series.way.name(),
            series.quota_percent,
            seen.messages_per_s,
            seen.server_us,
        ),
    );
}
