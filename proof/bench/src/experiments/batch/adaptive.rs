//! When batches go: policies under a load that goes up and down (PostMan, Figure 12), judged by p99 and by the server's
//! CPU time together.
//!
//! One server with a quota under the shim, a helper for each policy, all with the same bound on waiting. Each round is a
//! seed of its own: its keys, and when which client asks. In a round every policy has the whole course once, in turning
//! order. The first rounds choose the best policy, the others judge it.

mod findings;

use std::io::Write;
use std::time::Duration;

use spillway_lab::Place;
use spillway_load::config::Speech;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{say, spoilt_words, turns};
use crate::generator::{Clients, TOLD_AFTER, Traffic};
use crate::goodput::Tally;
use crate::measure::{QUOTA_SHARE_MAX, Step, again, spoilt_by, stopped};
use crate::results::Results;
use crate::scene::{Setting, quota_words};
use crate::stage::{Helper, HelperKind, Pair, QUOTA, Session, Stage, space_of};
use crate::table::milliseconds;

/// As helpers call them, with the bound on waiting where they have one: a helper's default, or a quarter of an SLA of
/// 1 ms. The first is what the others are compared with.
const POLICIES: [(&str, Duration); 5] = [
    ("adaptive", Duration::from_micros(200)),
    ("algorithm1", Duration::ZERO),
    ("fixed", Duration::from_micros(200)),
    ("deadline", Duration::from_micros(200)),
    ("following", Duration::from_micros(250)),
];
/// Of the first round.
const FIRST_SEED: u64 = 10_001;
/// Before the first step of a course.
const WARM_UP: Duration = Duration::from_millis(700);
/// A machine that stalled for longer than this share of a step has made a p99 of its own.
const STALLED_SHARE_MAX: f64 = 0.005;

/// How much is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Rounds that choose.
    pub choosing: usize,
    /// Rounds that judge.
    pub judging: usize,
    /// One step after the other, in requests a second.
    pub rates: Vec<f64>,
    /// Plain clients.
    pub connections: u32,
    /// After each change of rate.
    pub settle: Duration,
    /// Of each step.
    pub length: Duration,
    /// A spoilt step is done so many times in all.
    pub tries: u32,
}

impl Effort {
    /// What figures need.
    pub fn full() -> Effort {
        Effort {
            choosing: 3,
            judging: 5,
            rates: [1, 4, 8, 12, 8, 4, 1].map(|thousands| f64::from(thousands) * 1_000.0).into(),
            connections: 660,
            settle: Duration::from_millis(500),
            length: Duration::from_secs(3),
            tries: 2,
        }
    }

    /// What two minutes allow.
    pub fn quick() -> Effort {
        Effort {
            choosing: 1,
            judging: 1,
            settle: Duration::from_millis(200),
            length: Duration::from_millis(700),
            tries: 1,
            ..Effort::full()
        }
    }

    fn rounds(&self) -> usize {
        self.choosing + self.judging
    }
}

/// What a step of a course came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Seen {
    p50_us: f64,
    /// Where it falls among what was not answered, as long as one waited for that.
    p99_us: f64,
    server_us: f64,
    helper_us: f64,
    messages_per_batch: f64,
    batch_interval_us: f64,
    /// Of the server's quota, where it has one.
    quota_share: Option<f64>,
}

/// One policy: round by round, step by step, or why a step shows nothing.
#[derive(Clone, Debug)]
struct Series {
    policy: &'static str,
    rounds: Vec<Vec<Result<Seen, String>>>,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs it with so much effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let stage = Stage::set("adaptive", setting)?;
    let _ = writeln!(out, "{}; {} connections", setting.placement.words(), effort.connections);
    let pair = stage.pair(Speech::Memcached, &[])?;
    for round in 0..effort.rounds() {
        stage.fill(Speech::Memcached, pair.shimmed.address(), &space_of(seed(round)))?;
    }
    let start = |(batch, max_delay)| {
        let port = Place::from(&stage.middle).free_port()?;
        let kind = HelperKind { library: false, batch, max_delay };
        stage.helper_on((&stage.middle, port), pair.link, &kind)
    };
    let helpers = POLICIES.into_iter().map(start).collect::<Result<Vec<_>, Error>>()?;
    stage.server.set_quota(setting.quota)?;
    let series = POLICIES.map(|(policy, _)| Series { policy, rounds: Vec::new() });
    let mut play = Play { setting, effort, stage: &stage, pair, helpers, tally: Tally::default(), out };
    let mut machine = stage.machine(&[("memcached", "-V")])?;
    let mut series = Vec::from(series);
    let course = play.rounds(&mut series);
    let Play { tally, helpers, pair, .. } = play;
    drop((helpers, pair));
    let course = course.and_then(|()| stage.close());
    machine.lab.insert(QUOTA.into(), quota_words(setting.quota));
    machine.lab.insert(
        "helpers".into(),
        format!(
            "one for each policy, 1 thread, at most 200 µs for a batch (following: 250 µs); {} plain clients",
            effort.connections
        ),
    );
    let mut results = Results::new("adaptive", machine);
    findings::state(&series, effort, &mut results);
    results.checks = tally.checks();
    Ok(results.after(course))
}

fn seed(round: usize) -> u64 {
    FIRST_SEED + round as u64
}

struct Play<'a> {
    setting: &'a Setting,
    effort: &'a Effort,
    stage: &'a Stage,
    pair: Pair,
    /// In the order of [`POLICIES`].
    helpers: Vec<Helper>,
    tally: Tally,
    out: &'a mut dyn Write,
}

impl Play<'_> {
    fn rounds(&mut self, series: &mut [Series]) -> Result<(), Error> {
        for (round, at) in turns(self.effort.rounds(), series.len()) {
            let steps = self.course(round, at)?;
            series[at].rounds.push(steps);
        }
        Ok(())
    }

    /// The load up and down, once, through one policy's helper.
    fn course(&mut self, round: usize, at: usize) -> Result<Vec<Result<Seen, String>>, Error> {
        let helper = &self.helpers[at];
        let traffic = Traffic::default();
        let clients = self.stage.clients(helper.address, &traffic, self.effort.connections);
        let clients = Clients { seed: seed(round), ..clients };
        let mut session = self.stage.session_of(&clients, &traffic)?;
        let mut steps = Vec::new();
        for (n, &rate) in self.effort.rates.iter().enumerate() {
            let warm_up = if n == 0 { WARM_UP } else { Duration::ZERO };
            let (seen, step) = self.step(&mut session, rate, warm_up, helper)?;
            let spoilt = spoilt_words(seen.as_ref().err().map(String::as_str));
            say(
                self.out,
                format_args!(
                    "round {}: {} at {rate}/s: p99 {}; server {:.1} % of a core, {:.1} messages a batch{spoilt}",
                    round + 1,
                    POLICIES[at].0,
                    milliseconds(step.span.p99_us(), "without a reply"),
                    step.used.server_percent(),
                    step.used.messages_per_batch().unwrap_or(0.0),
                ),
            );
            steps.push(seen);
        }
        self.tally.add(&session.finish()?);
        self.pair.check()?;
        self.helpers.iter_mut().try_for_each(Helper::check)?;
        Ok(steps)
    }

    fn step(
        &self,
        session: &mut Session<'_>,
        rate: f64,
        warm_up: Duration,
        helper: &Helper,
    ) -> Result<(Result<Seen, String>, Step), Error> {
        let Effort { settle, length, tries, .. } = *self.effort;
        let mut warm_up = Some(warm_up);
        again(
            tries,
            || {
                let settle = settle + warm_up.take().unwrap_or_default();
                let step = session.step(rate, settle, length, Some(helper))?.step;
                Ok((seen(&step, self.setting, length), step))
            },
            |(seen, _)| seen.is_ok(),
        )
    }
}

fn seen(step: &Step, setting: &Setting, length: Duration) -> Result<Seen, String> {
    let used = &step.used;
    let quota_share = used.quota_share(setting.quota);
    let stalled = used.stalled_s > STALLED_SHARE_MAX * used.seconds;
    let spoilt = spoilt_by(used, step.lag_p99_us)
        .or_else(|| stopped(used))
        .or_else(|| stalled.then(|| format!("the machine stalled for {:.0} ms", used.stalled_s * 1000.0)))
        .or_else(|| {
            let share = quota_share.filter(|&share| share > QUOTA_SHARE_MAX)?;
            Some(format!("the server used {:.0} % of its quota", share * 100.0))
        });
    let replies = step.replies_per_s * used.seconds;
    match (spoilt, used.messages_per_batch()) {
        (Some(why), _) => Err(why),
        (None, Some(messages_per_batch)) if replies >= 1.0 => {
            let waited_us = (length + TOLD_AFTER).as_micros() as f64;
            let quantile = |q| step.span.quantile_us(q).map_or(waited_us, |us| us as f64);
            Ok(Seen {
                p50_us: quantile(0.5),
                p99_us: quantile(0.99),
                server_us: used.server_s() * 1e6 / replies,
                helper_us: used.helper_s * 1e6 / replies,
                messages_per_batch,
                batch_interval_us: used.seconds * 1e6 / used.batches as f64,
                quota_share,
            })
        }
        (None, _) => Err("there were no batches, or no replies".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Used;
    use crate::programs::Programs;
    use std::path::Path;

    #[test]
    fn a_step_that_nobody_disturbed_counts_by_its_replies() {
        let used = Used {
            seconds: 2.0,
            server_process_s: 0.08,
            server_interface_s: 0.02,
            batches: 4_000,
            messages: 10_000,
            ..Used::default()
        };
        let step = Step { rate_per_s: 6_000.0, used, replies_per_s: 5_000.0, ..Step::default() };
        let setting = Setting::new(Programs::in_directory(Path::new("")));
        let seen = |step: &Step| seen(step, &setting, Duration::from_secs(2));
        let good = seen(&step).unwrap();
        assert!((good.server_us - 10.0).abs() < 1e-9 && (good.batch_interval_us - 500.0).abs() < 1e-9);
        assert_eq!(
            (good.messages_per_batch, good.p99_us),
            (2.5, 2_250_000.0),
            "nothing was answered in time"
        );
        assert!((good.quota_share.unwrap() - 0.5).abs() < 1e-9);
        let beyond = Step { used: Used { server_process_s: 0.3, ..used }, ..step.clone() };
        assert!(seen(&beyond).unwrap_err().contains("of its quota"));
        let stalled = Step { used: Used { stalled_s: 0.02, ..used }, ..step.clone() };
        assert!(seen(&stalled).unwrap_err().contains("stalled"));
        assert!(seen(&Step { used: Used { batches: 0, ..used }, ..step }).is_err());
    }
}
