//! One burst and its relief: light load, burst, relief, burst over, clients direct again.

use std::time::Duration;

use serde::Serialize;
use spillway_load::Report;
use spillway_load::report::{Move, Target};

use crate::error::Error;
use crate::generator::{Clients, Order, TOLD_AFTER};
use crate::measure::{Snapshot, Used, not_saturated, spoilt_by, stopped};
use crate::relief::{self, Span};
use crate::report::Phase;
use crate::scene::{Scene, System};

/// CPU and batches are looked at so often.
const SAMPLE_MS: u64 = 250;
/// A second is told so long after its end.
const TOLD_AFTER_MS: u64 = TOLD_AFTER.as_millis() as u64;
/// Left out at the beginning of a phase where its steady state is wanted.
const UNSETTLED_MS: u64 = 1_000;

/// When what happens, in ms since the start, and how much is offered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Requests a second, before and after the burst.
    pub light_per_s: f64,
    /// Requests a second in the burst.
    pub burst_per_s: f64,
    /// The burst begins.
    pub burst_ms: u64,
    /// The word: clients move to the helper.
    pub decision_ms: u64,
    /// The burst is over.
    pub over_ms: u64,
    /// Clients move back.
    pub back_ms: u64,
    /// The end.
    pub end_ms: u64,
}

impl Plan {
    /// A third of the direct capacity as light load, three times as much as burst; times in whole seconds.
    pub fn new(direct_per_s: f64, light_s: u64, burst_s: u64, relieved_s: u64, after_s: u64) -> Plan {
        let burst_ms = light_s * 1000;
        let decision_ms = burst_ms + burst_s * 1000;
        let over_ms = decision_ms + relieved_s * 1000;
        Plan {
            light_per_s: direct_per_s / 3.0,
            burst_per_s: direct_per_s * 3.0,
            burst_ms,
            decision_ms,
            over_ms,
            back_ms: over_ms + 1_000,
            end_ms: over_ms + after_s.max(2) * 1000,
        }
    }

    fn schedule(&self) -> Vec<(Duration, Order)> {
        let at = Duration::from_millis;
        vec![
            (at(self.burst_ms), Order::Rate(self.burst_per_s)),
            (at(self.decision_ms), Order::ToHelper),
            (at(self.over_ms), Order::Rate(self.light_per_s)),
            (at(self.back_ms), Order::ToServer),
        ]
    }

    /// The phases, for charts.
    pub fn phases(&self) -> Vec<Phase> {
        let phase = |name: &str, from_ms: u64, to_ms: u64| Phase {
            name: name.into(),
            from_s: from_ms as f64 / 1000.0,
            to_s: to_ms as f64 / 1000.0,
        };
        vec![
            phase("light load", 0, self.burst_ms),
            phase("burst", self.burst_ms, self.decision_ms),
            phase("relief on", self.decision_ms, self.over_ms),
            phase("burst over", self.over_ms, self.end_ms),
        ]
    }
}

/// What a reader sees of one second while the run lasts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Second {
    /// Where it begins.
    pub at_s: u64,
    /// Requests intended.
    pub offered: u64,
    /// The share with a right reply within the SLA.
    pub on_time_share: f64,
    /// `None` where it falls among what has no reply yet.
    pub p99_us: Option<u64>,
    /// Of the server's host, in percent of a core.
    pub server_percent: f64,
    /// Of the helper's host, in percent of a core.
    pub helper_percent: f64,
    /// Connections on the helper at its end.
    pub helped: u32,
    /// Messages in each batch, if there were batches.
    pub messages_per_batch: Option<f64>,
}

/// Costs between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Where it begins, in ms since the start.
    pub from_ms: u64,
    /// Where it ends.
    pub to_ms: u64,
    /// What was used.
    pub used: Used,
    /// Replies that came in.
    pub replies: u64,
}

/// A run that was carried out.
#[derive(Clone, Debug)]
pub struct Relieved {
    /// What was planned.
    pub plan: Plan,
    /// The SLA of the run, in µs.
    pub sla_us: u64,
    /// Everything that the clients saw.
    pub report: Report,
    /// Costs, in order.
    pub samples: Vec<Sample>,
}

impl Relieved {
    /// The move to the helper.
    pub fn moved(&self) -> Option<&Move> {
        self.report.moves.iter().find(|m| m.target == Target::Helper)
    }

    /// From relief on to the last connection's first helped reply, in ms; `None` unless all moved.
    pub fn moved_ms(&self) -> Option<f64> {
        self.moved().filter(|m| m.complete && m.failed == 0).map(Move::moved_ms)
    }

    /// See [`relief::relief_ms`]; looked for until the burst is over.
    pub fn relief_ms(&self) -> Option<u64> {
        relief::relief_ms(&self.report.bins, self.plan.decision_ms, self.plan.over_ms, self.sla_us)
    }

    /// See [`relief::drain_floor_ms`], with what the server really served in the burst and serves when helped.
    pub fn drain_floor_ms(&self, helped_per_s: f64) -> Option<f64> {
        let plan = &self.plan;
        let lasted_s = (plan.decision_ms - plan.burst_ms) as f64 / 1000.0;
        relief::drain_floor_ms(plan.burst_per_s, self.served_in_burst_per_s(), helped_per_s, lasted_s)
    }

    /// Replies a second while the burst overloads the server.
    pub fn served_in_burst_per_s(&self) -> f64 {
        let (used, replies) = self.between(self.plan.burst_ms + UNSETTLED_MS, self.plan.decision_ms);
        if used.seconds > 0.0 { replies as f64 / used.seconds } else { 0.0 }
    }

    /// Costs and replies within a span, over the samples that lie in it whole.
    pub fn between(&self, from_ms: u64, to_ms: u64) -> (Used, u64) {
        let mut total = (Used::default(), 0);
        for sample in self.samples.iter().filter(|s| s.from_ms >= from_ms && s.to_ms <= to_ms) {
            total.0.add(&sample.used);
            total.1 += sample.replies;
        }
        total
    }

    /// The steady part of the light load.
    pub fn light(&self) -> (u64, u64) {
        (UNSETTLED_MS, self.plan.burst_ms)
    }

    /// The steady part of the burst before relief is switched on.
    pub fn overloaded(&self) -> (u64, u64) {
        (self.plan.burst_ms + UNSETTLED_MS, self.plan.decision_ms)
    }

    /// The steady part of the burst after relief is switched on.
    pub fn relieved(&self) -> (u64, u64) {
        let settled = self.relief_ms().unwrap_or(0) + UNSETTLED_MS;
        ((self.plan.decision_ms + settled).min(self.plan.over_ms), self.plan.over_ms)
    }

    /// The steady part after everything.
    pub fn after(&self) -> (u64, u64) {
        (self.plan.back_ms + UNSETTLED_MS, self.plan.end_ms)
    }

    /// What was asked and answered within a span.
    pub fn span(&self, (from_ms, to_ms): (u64, u64)) -> Span {
        Span::of(&self.report.bins, from_ms, to_ms)
    }

    /// Why this run must not be cited, if so.
    pub fn spoilt(&self, quota: Option<spillway_lab::Quota>) -> Vec<String> {
        let mut reasons = Vec::new();
        let (overloaded, _) = self.between(self.overloaded().0, self.overloaded().1);
        reasons.extend(not_saturated(&overloaded, quota));
        let (relieved, _) = self.between(self.relieved().0, self.relieved().1);
        reasons.extend(
            relieved
                .quota_share(quota)
                .filter(|share| *share > 1.05)
                .map(|share| format!("the helped server used {:.0} % of its quota", share * 100.0)),
        );
        for (name, (from_ms, to_ms)) in
            [("light load", self.light()), ("relief", (self.plan.decision_ms, self.plan.over_ms))]
        {
            let (used, _) = self.between(from_ms, to_ms);
            let lag = self.report.span(from_ms, to_ms).lag_us.quantile_us(0.99);
            reasons
                .extend(spoilt_by(&used, lag).or_else(|| stopped(&used)).map(|why| format!("{name}: {why}")));
        }
        reasons
    }
}

/// Carries a plan out. Each second is told as soon as it can be.
pub fn run(
    scene: &mut Scene,
    plan: Plan,
    sla_us: u64,
    tell: &mut dyn FnMut(&Second),
) -> Result<Relieved, Error> {
    let clients = Clients {
        rate_per_s: plan.light_per_s,
        duration: Some(Duration::from_millis(plan.end_ms)),
        schedule: plan.schedule(),
        sla: Duration::from_micros(sla_us),
        ..scene.clients(System::Helped)
    };
    let mut generators = scene.start(&clients)?;
    generators.begin()?;
    generators.sleep_until_ms(0);
    let mut looks: Vec<(u64, Snapshot, u64)> = Vec::new();
    let mut told_s = 0;
    let mut helped = Vec::new();
    for at_ms in (0..=plan.end_ms + TOLD_AFTER_MS).step_by(SAMPLE_MS as usize) {
        generators.sleep_until_ms(at_ms);
        looks.push((at_ms, scene.snapshot()?, generators.answered()));
        helped.push(generators.helped_now());
        if at_ms < plan.end_ms {
            generators.check()?;
        }
        scene.check()?;
        while (told_s + 1) * 1000 + TOLD_AFTER_MS <= at_ms && told_s * 1000 < plan.end_ms {
            let (from_ms, to_ms) = (told_s * 1000, (told_s + 1) * 1000);
            let span = Span::of(&generators.bins(from_ms, to_ms), from_ms, to_ms);
            let used = used_between(&looks, from_ms, to_ms);
            tell(&Second {
                at_s: told_s,
                offered: span.offered,
                on_time_share: span.on_time_share(sla_us),
                p99_us: span.p99_us(),
                server_percent: used.server_percent(),
                helper_percent: used.percent(used.helper_s),
                helped: helped.get((to_ms / SAMPLE_MS) as usize).copied().unwrap_or(0),
                messages_per_batch: used.messages_per_batch(),
            });
            told_s += 1;
        }
    }
    let report = generators.finish()?;
    Ok(Relieved { plan, sla_us, report, samples: samples(&looks) })
}

fn used_between(looks: &[(u64, Snapshot, u64)], from_ms: u64, to_ms: u64) -> Used {
    let at = |ms: u64| looks.iter().find(|(at_ms, ..)| *at_ms == ms).map(|(_, snapshot, _)| snapshot);
    match (at(from_ms), at(to_ms)) {
        (Some(from), Some(to)) => to.since(from),
        _ => Used::default(),
    }
}

fn samples(looks: &[(u64, Snapshot, u64)]) -> Vec<Sample> {
    let sample = |pair: &[(u64, Snapshot, u64)]| Sample {
        from_ms: pair[0].0,
        to_ms: pair[1].0,
        used: pair[1].1.since(&pair[0].1),
        replies: pair[1].2 - pair[0].2,
    };
    looks.windows(2).map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_lab::Quota;
    use spillway_load::report::Bin;

    const QUOTA: Option<Quota> = Some(Quota { percent_of_core: 10.0, period: Duration::from_millis(10) });

    /// Overload from 2 s on at 9,000/s of which 8,000 are served; relief at 5 s; good again 0.4 s later.
    fn relieved() -> Relieved {
        let plan = Plan::new(3_000.0, 2, 3, 5, 3);
        let bins = (0..plan.end_ms / 100).map(|n| {
            let at_ms = n * 100;
            let mut bin = Bin { at_ms, offered: 100, ..Bin::default() };
            let bad = (plan.burst_ms..plan.decision_ms + 400).contains(&at_ms);
            bin.helped.answered = 100;
            bin.helped.latency_us.record(if bad { 90_000 } else { 400 }, 100);
            bin.lag_us.record(20, 100);
            bin
        });
        let report = Report { bins: bins.collect(), ..Report::default() };
        let sample = |n: u64| {
            let from_ms = n * SAMPLE_MS;
            let overloaded = (plan.burst_ms..plan.decision_ms).contains(&from_ms);
            let used = Used {
                seconds: 0.25,
                server_process_s: if overloaded { 0.025 } else { 0.012 },
                helper_s: 0.05,
                ..Used::default()
            };
            Sample {
                from_ms,
                to_ms: from_ms + SAMPLE_MS,
                used,
                replies: if overloaded { 2_000 } else { 250 },
            }
        };
        let samples = (0..plan.end_ms / SAMPLE_MS).map(sample).collect();
        Relieved { plan, sla_us: 1_000, report, samples }
    }

    #[test]
    fn a_plan_is_a_third_then_three_times_the_capacity() {
        let plan = Plan::new(3_000.0, 6, 8, 10, 6);
        assert_eq!((plan.light_per_s, plan.burst_per_s), (1_000.0, 9_000.0));
        assert_eq!(
            (plan.burst_ms, plan.decision_ms, plan.over_ms, plan.end_ms),
            (6_000, 14_000, 24_000, 30_000)
        );
        let phases = plan.phases();
        assert!(phases.windows(2).all(|pair| pair[0].to_s == pair[1].from_s));
        assert_eq!(phases.last().unwrap().to_s, 30.0);
        assert!(plan.schedule().is_sorted_by_key(|(at, _)| *at));
    }

    #[test]
    fn relief_and_floor_come_from_the_same_run() {
        let run = relieved();
        assert_eq!(run.relief_ms(), Some(400));
        assert_eq!(run.served_in_burst_per_s(), 8_000.0);
        // 1,000/s too much for 3 s; 15,000/s to spare.
        assert_eq!(run.drain_floor_ms(24_000.0), Some(200.0));
        assert_eq!(run.moved_ms(), None, "nothing moved");
        assert_eq!(run.spoilt(QUOTA), Vec::<String>::new());
    }

    #[test]
    fn a_spoilt_run_says_so() {
        let mut run = relieved();
        for sample in &mut run.samples {
            sample.used.server_process_s *= 0.9;
            sample.used.stolen_s = 0.01;
        }
        let reasons = run.spoilt(QUOTA).join("; ");
        assert!(reasons.contains("90.0 % of its quota"), "{reasons}");
        assert!(reasons.contains("light load: the machine was stopped"), "{reasons}");
        assert!(reasons.contains("relief: the machine was stopped"), "{reasons}");
    }

    #[test]
    fn only_whole_samples_count() {
        let run = relieved();
        let (used, replies) = run.between(2_100, 3_100);
        assert_eq!((used.seconds, replies), (0.75, 6_000));
    }
}
