//! Batch policies under a load that rises and falls (PostMan, Figure 12), compared by p99 and server CPU time together.
//!
//! One server with a quota and the preload library, and a helper for each policy. Each round has its own
//! seed, for keys and request times, and offers the whole course of rates once to every policy, in rotating
//! order. The first rounds choose the best policy; the others measure it.

mod findings;

use std::io::Write;
use std::time::Duration;

use spillway_lab::Place;
use spillway_load::config::ProtocolKind;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{measurement_order, print_line, spoilt_suffix};
use crate::generator::{BIN_REPORT_DELAY, Clients, Traffic};
use crate::goodput::Tally;
use crate::measure::{QUOTA_SHARE_MAX, Step, measure_until_valid, spoilt_by, stopped};
use crate::results::Results;
use crate::scene::{Setting, quota_text};
use crate::stage::{Helper, HelperKind, Pair, QUOTA_ENTRY, Session, Stage, space_of};
use crate::table::milliseconds;

/// Names of policies in a helper's options, and their batch delay: the default, or a quarter of an SLA of 1 ms.
/// `algorithm1` has no delay of its own. All others are compared with the first.
const POLICIES: [(&str, Duration); 5] = [
    ("adaptive", Duration::from_micros(200)),
    ("algorithm1", Duration::ZERO),
    ("fixed", Duration::from_micros(200)),
    ("deadline", Duration::from_micros(200)),
    ("following", Duration::from_micros(250)),
];
const FIRST_SEED: u64 = 10_001;
/// Pause before the first step of a course.
const WARM_UP: Duration = Duration::from_millis(700);
/// Steps in which the machine stalled for a larger share of the time are spoilt: their p99 is that of the stalls.
const STALLED_SHARE_MAX: f64 = 0.005;

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Rounds that choose the best policy.
    pub choosing: usize,
    /// Rounds that measure the chosen policy.
    pub judging: usize,
    /// Offered rates of the steps in order, in requests a second.
    pub rates: Vec<f64>,
    /// Number of plain clients.
    pub connections: u32,
    /// Pause after each change of rate.
    pub settle: Duration,
    /// Length of each step.
    pub length: Duration,
    /// Maximum number of attempts at a spoilt step, the first included.
    pub attempts_max: u32,
}

impl Effort {
    /// The effort of a complete run, whose figures may be published.
    pub fn full() -> Effort {
        Effort {
            choosing: 3,
            judging: 5,
            rates: [1, 4, 8, 12, 8, 4, 1].map(|thousands| f64::from(thousands) * 1_000.0).into(),
            connections: 660,
            settle: Duration::from_millis(500),
            length: Duration::from_secs(3),
            attempts_max: 2,
        }
    }

    /// The effort of a quick run: about two minutes.
    pub fn quick() -> Effort {
        Effort {
            choosing: 1,
            judging: 1,
            settle: Duration::from_millis(200),
            length: Duration::from_millis(700),
            attempts_max: 1,
            ..Effort::full()
        }
    }

    fn rounds(&self) -> usize {
        self.choosing + self.judging
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Measurement {
    p50_us: f64,
    /// If the p99 falls among unanswered requests: the length of the step plus the wait for late replies.
    p99_us: f64,
    server_us: f64,
    helper_us: f64,
    messages_per_batch: f64,
    batch_interval_us: f64,
    /// Used share of the server's quota; `None` without a quota.
    quota_share: Option<f64>,
}

/// Steps of one policy by round; an error is the reason why a step is spoilt.
#[derive(Clone, Debug)]
struct Series {
    policy: &'static str,
    rounds: Vec<Vec<Result<Measurement, String>>>,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let stage = Stage::create("adaptive", setting)?;
    let _ = writeln!(out, "{}; {} connections", setting.placement.description(), effort.connections);
    let pair = stage.pair(ProtocolKind::Memcached, &[])?;
    for round in 0..effort.rounds() {
        stage.fill(ProtocolKind::Memcached, pair.shimmed.address(), &space_of(seed(round)))?;
    }
    let start = |(batch, max_delay)| {
        let port = Place::from(&stage.middle_host).free_port()?;
        let kind = HelperKind { library: false, batch, max_delay };
        stage.helper_on((&stage.middle_host, port), pair.link, &kind)
    };
    let helpers = POLICIES.into_iter().map(start).collect::<Result<Vec<_>, Error>>()?;
    stage.server.set_quota(setting.quota)?;
    let series = POLICIES.map(|(policy, _)| Series { policy, rounds: Vec::new() });
    let mut course = Course { setting, effort, stage: &stage, pair, helpers, tally: Tally::default(), out };
    let mut machine = stage.machine(&[("memcached", "-V")])?;
    let mut series = Vec::from(series);
    let outcome = course.measure_rounds(&mut series);
    let Course { tally, helpers, pair, .. } = course;
    drop((helpers, pair));
    let outcome = outcome.and_then(|()| stage.close());
    machine.lab.insert(QUOTA_ENTRY.into(), quota_text(setting.quota));
    machine.lab.insert(
        "helpers".into(),
        format!(
            "one for each policy, 1 thread, at most 200 µs for a batch (following: 250 µs); {} plain clients",
            effort.connections
        ),
    );
    let mut results = Results::new("adaptive", machine);
    findings::add_results(&series, effort, &mut results);
    results.checks = tally.checks();
    Ok(results.with_outcome(outcome))
}

fn seed(round: usize) -> u64 {
    FIRST_SEED + round as u64
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

impl Course<'_> {
    fn measure_rounds(&mut self, series: &mut [Series]) -> Result<(), Error> {
        for (round, policy_index) in measurement_order(self.effort.rounds(), series.len()) {
            let steps = self.measure_course(round, policy_index)?;
            series[policy_index].rounds.push(steps);
        }
        Ok(())
    }

    /// All steps once, through the helper of one policy.
    fn measure_course(
        &mut self,
        round: usize,
        policy_index: usize,
    ) -> Result<Vec<Result<Measurement, String>>, Error> {
        let helper = &self.helpers[policy_index];
        let traffic = Traffic::default();
        let clients = self.stage.clients(helper.address, &traffic, self.effort.connections);
        let clients = Clients { seed: seed(round), ..clients };
        let mut session = self.stage.session_of(&clients, &traffic)?;
        let mut steps = Vec::new();
        for (n, &rate) in self.effort.rates.iter().enumerate() {
            let warm_up = if n == 0 { WARM_UP } else { Duration::ZERO };
            let (measurement, step) = self.measure_step(&mut session, rate, warm_up, helper)?;
            let spoilt = spoilt_suffix(measurement.as_ref().err().map(String::as_str));
            print_line(
                self.out,
                format_args!(
                    "round {}: {} at {rate}/s: p99 {}; server {:.1} % of a core, {:.1} messages a batch{spoilt}",
                    round + 1,
                    POLICIES[policy_index].0,
                    milliseconds(step.span.p99_us(), "without a reply"),
                    step.used.server_percent(),
                    step.used.messages_per_batch().unwrap_or(0.0),
                ),
            );
            steps.push(measurement);
        }
        self.tally.add(&session.finish()?);
        self.pair.check()?;
        self.helpers.iter_mut().try_for_each(Helper::check)?;
        Ok(steps)
    }

    fn measure_step(
        &self,
        session: &mut Session<'_>,
        rate: f64,
        warm_up: Duration,
        helper: &Helper,
    ) -> Result<(Result<Measurement, String>, Step), Error> {
        let Effort { settle, length, attempts_max, .. } = *self.effort;
        let mut warm_up = Some(warm_up);
        measure_until_valid(
            attempts_max,
            || {
                let settle = settle + warm_up.take().unwrap_or_default();
                let step = session.step(rate, settle, length, Some(helper))?.step;
                Ok((measurement_of(&step, self.setting, length), step))
            },
            |(measurement, _)| measurement.is_ok(),
        )
    }
}

fn measurement_of(step: &Step, setting: &Setting, length: Duration) -> Result<Measurement, String> {
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
            let waited_us = (length + BIN_REPORT_DELAY).as_micros() as f64;
            let quantile = |q| step.span.quantile_us(q).map_or(waited_us, |us| us as f64);
            Ok(Measurement {
                p50_us: quantile(0.5),
                p99_us: quantile(0.99),
                server_us: used.server_s() * 1e6 / replies,
                helper_us: used.helper_s * 1e6 / replies,
                messages_per_batch,
                batch_interval_us: used.seconds * 1e6 / used.batches as f64,
                quota_share,
            })
        }
        (None, _) => Err("the helper sent no batches, or the server sent no replies".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Used;
    use crate::programs::Programs;
    use std::path::Path;

    #[test]
    fn costs_are_divided_by_replies_and_disturbed_steps_are_spoilt() {
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
        let measure = |step: &Step| measurement_of(step, &setting, Duration::from_secs(2));
        let measurement = measure(&step).unwrap();
        assert!(
            (measurement.server_us - 10.0).abs() < 1e-9
                && (measurement.batch_interval_us - 500.0).abs() < 1e-9
        );
        assert_eq!(
            (measurement.messages_per_batch, measurement.p99_us),
            (2.5, 2_250_000.0),
            "without a p99 the waiting time should count"
        );
        assert!((measurement.quota_share.unwrap() - 0.5).abs() < 1e-9);
        let above_quota = Step { used: Used { server_process_s: 0.3, ..used }, ..step.clone() };
        assert!(measure(&above_quota).unwrap_err().contains("of its quota"));
        let stalled = Step { used: Used { stalled_s: 0.02, ..used }, ..step.clone() };
        assert!(measure(&stalled).unwrap_err().contains("stalled"));
        assert!(measure(&Step { used: Used { batches: 0, ..used }, ..step }).is_err());
    }
}
