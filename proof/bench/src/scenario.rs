//! One run: light load, burst, relief, end of the burst, return of the clients to the server.

use std::time::Duration;

use serde::Serialize;
use spillway_load::Report;
use spillway_load::report::{Move, Target};

use crate::error::Error;
use crate::generator::{BIN_REPORT_DELAY, Clients, Order};
use crate::measure::{Snapshot, Used, not_saturated, spoilt_by, stopped};
use crate::relief::{self, Span};
use crate::report::Phase;
use crate::scene::{Scene, System};

const SAMPLE_MS: u64 = 250;
const BIN_REPORT_DELAY_MS: u64 = BIN_REPORT_DELAY.as_millis() as u64;
/// The first part of each phase, which does not count as its steady state.
const UNSETTLED_MS: u64 = 1_000;

/// Rates and times of a run. Times are in ms since the start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Requests a second before and after the burst.
    pub light_per_s: f64,
    /// Requests a second in the burst.
    pub burst_per_s: f64,
    /// Start of the burst.
    pub burst_ms: u64,
    /// Relief is switched on, and clients begin to move to the helper.
    pub decision_ms: u64,
    /// End of the burst.
    pub over_ms: u64,
    /// Clients begin to move back to the server.
    pub back_ms: u64,
    /// End of the run.
    pub end_ms: u64,
}

impl Plan {
    /// A plan with a light load of a third of the direct capacity and a burst of three times the direct
    /// capacity. The lengths of its phases are in seconds.
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
        let ms = Duration::from_millis;
        vec![
            (ms(self.burst_ms), Order::Rate(self.burst_per_s)),
            (ms(self.decision_ms), Order::ToHelper),
            (ms(self.over_ms), Order::Rate(self.light_per_s)),
            (ms(self.back_ms), Order::ToServer),
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

/// One second of a run, as printed during the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Second {
    /// Start, in s since the start of the run.
    pub at_s: u64,
    /// Requests due in this second.
    pub offered: u64,
    /// Share of requests with a correct reply within the SLA, 0 to 1.
    pub on_time_share: f64,
    /// The p99 in µs; `None` if it falls among requests without a reply so far.
    pub p99_us: Option<u64>,
    /// CPU use of the server's host, in percent of a core.
    pub server_percent: f64,
    /// CPU use of the helper's host, in percent of a core.
    pub helper_percent: f64,
    /// Connections on the helper at the end of this second.
    pub helped: u32,
    /// Mean number of messages in a batch; `None` without batches.
    pub messages_per_batch: Option<f64>,
}

/// CPU use and replies between two snapshots. Times are in ms since the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Time of the first snapshot.
    pub from_ms: u64,
    /// Time of the second snapshot.
    pub to_ms: u64,
    /// CPU use.
    pub used: Used,
    /// Number of replies that arrived between the snapshots.
    pub replies: u64,
}

/// A finished run.
#[derive(Clone, Debug)]
pub struct BurstRun {
    /// Rates and times.
    pub plan: Plan,
    /// The SLA of the run, in µs.
    pub sla_us: u64,
    /// The clients' report.
    pub report: Report,
    /// Samples in order of time.
    pub samples: Vec<Sample>,
}

impl BurstRun {
    /// The move to the helper.
    pub fn moved(&self) -> Option<&Move> {
        self.report.moves.iter().find(|moved| moved.target == Target::Helper)
    }

    /// Time from relief on to the last connection's first helped reply, in ms; `None` unless all connections moved.
    pub fn moved_ms(&self) -> Option<f64> {
        self.moved().filter(|moved| moved.complete && moved.failed == 0).map(Move::moved_ms)
    }

    /// [`relief::relief_ms`] up to the end of the burst.
    pub fn relief_ms(&self) -> Option<u64> {
        relief::relief_ms(&self.report.bins, self.plan.decision_ms, self.plan.over_ms, self.sla_us)
    }

    /// [`relief::drain_floor_ms`] with the replies that the server sent in the burst, and its helped throughput.
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

    /// CPU use and replies within a span, over the samples that are completely in it.
    pub fn between(&self, from_ms: u64, to_ms: u64) -> (Used, u64) {
        let mut total = (Used::default(), 0);
        for sample in self.samples.iter().filter(|sample| sample.from_ms >= from_ms && sample.to_ms <= to_ms)
        {
            total.0.add(&sample.used);
            total.1 += sample.replies;
        }
        total
    }

    /// The steady state of the light load. This and the following spans are in ms since the start of the run.
    pub fn light(&self) -> (u64, u64) {
        (UNSETTLED_MS, self.plan.burst_ms)
    }

    /// The steady state of the burst before relief is switched on.
    pub fn overloaded(&self) -> (u64, u64) {
        (self.plan.burst_ms + UNSETTLED_MS, self.plan.decision_ms)
    }

    /// The steady state of the burst after relief.
    pub fn relieved(&self) -> (u64, u64) {
        let settled = self.relief_ms().unwrap_or(0) + UNSETTLED_MS;
        ((self.plan.decision_ms + settled).min(self.plan.over_ms), self.plan.over_ms)
    }

    /// The steady state after the clients have moved back.
    pub fn after(&self) -> (u64, u64) {
        (self.plan.back_ms + UNSETTLED_MS, self.plan.end_ms)
    }

    /// Requests and latencies within a span.
    pub fn span(&self, (from_ms, to_ms): (u64, u64)) -> Span {
        Span::of(&self.report.bins, from_ms, to_ms)
    }

    /// Reasons why the run must not be cited; empty for a valid run.
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

/// Runs a plan. Calls `on_second` for each second as soon as its bins are complete.
pub fn run(
    scene: &mut Scene,
    plan: Plan,
    sla_us: u64,
    on_second: &mut dyn FnMut(&Second),
) -> Result<BurstRun, Error> {
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
    let mut snapshots: Vec<(u64, Snapshot, u64)> = Vec::new();
    let mut next_s = 0;
    let mut helped = Vec::new();
    for at_ms in (0..=plan.end_ms + BIN_REPORT_DELAY_MS).step_by(SAMPLE_MS as usize) {
        generators.sleep_until_ms(at_ms);
        snapshots.push((at_ms, scene.snapshot()?, generators.answered()));
        helped.push(generators.helped_now());
        if at_ms < plan.end_ms {
            generators.check()?;
        }
        scene.check()?;
        while (next_s + 1) * 1000 + BIN_REPORT_DELAY_MS <= at_ms && next_s * 1000 < plan.end_ms {
            let (from_ms, to_ms) = (next_s * 1000, (next_s + 1) * 1000);
            let span = Span::of(&generators.bins(from_ms, to_ms), from_ms, to_ms);
            let used = used_between(&snapshots, from_ms, to_ms);
            on_second(&Second {
                at_s: next_s,
                offered: span.offered,
                on_time_share: span.on_time_share(sla_us),
                p99_us: span.p99_us(),
                server_percent: used.server_percent(),
                helper_percent: used.percent(used.helper_s),
                helped: helped.get((to_ms / SAMPLE_MS) as usize).copied().unwrap_or(0),
                messages_per_batch: used.messages_per_batch(),
            });
            next_s += 1;
        }
    }
    let report = generators.finish()?;
    Ok(BurstRun { plan, sla_us, report, samples: samples(&snapshots) })
}

fn used_between(snapshots: &[(u64, Snapshot, u64)], from_ms: u64, to_ms: u64) -> Used {
    let snapshot_at =
        |ms: u64| snapshots.iter().find(|(at_ms, ..)| *at_ms == ms).map(|(_, snapshot, _)| snapshot);
    match (snapshot_at(from_ms), snapshot_at(to_ms)) {
        (Some(from), Some(to)) => to.since(from),
        _ => Used::default(),
    }
}

fn samples(snapshots: &[(u64, Snapshot, u64)]) -> Vec<Sample> {
    let sample = |pair: &[(u64, Snapshot, u64)]| Sample {
        from_ms: pair[0].0,
        to_ms: pair[1].0,
        used: pair[1].1.since(&pair[0].1),
        replies: pair[1].2 - pair[0].2,
    };
    snapshots.windows(2).map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_lab::Quota;
    use spillway_load::report::Bin;

    const QUOTA: Option<Quota> = Some(Quota { percent_of_core: 10.0, period: Duration::from_millis(10) });

    /// Overload from 2 s on, with 9,000 requests a second of which 8,000 are served; relief is switched on at
    /// 5 s, and p99 is within the SLA 0.4 s later.
    fn example_run() -> BurstRun {
        let plan = Plan::new(3_000.0, 2, 3, 5, 3);
        let bins = (0..plan.end_ms / 100).map(|n| {
            let at_ms = n * 100;
            let mut bin = Bin { at_ms, offered: 100, ..Bin::default() };
            let is_late = (plan.burst_ms..plan.decision_ms + 400).contains(&at_ms);
            bin.helped.answered = 100;
            bin.helped.latency_us.record(if is_late { 90_000 } else { 400 }, 100);
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
        BurstRun { plan, sla_us: 1_000, report, samples }
    }

    #[test]
    fn a_plan_offers_a_third_and_then_three_times_the_capacity() {
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
    fn relief_time_and_drain_floor_are_computed_from_a_run() {
        let run = example_run();
        assert_eq!(run.relief_ms(), Some(400));
        assert_eq!(run.served_in_burst_per_s(), 8_000.0);
        // A backlog of 1,000/s for 3 s drains at 15,000/s.
        assert_eq!(run.drain_floor_ms(24_000.0), Some(200.0));
        assert_eq!(run.moved_ms(), None, "without a moved connection there is no time to move");
        assert_eq!(run.spoilt(QUOTA), Vec::<String>::new());
    }

    #[test]
    fn a_spoilt_run_has_reasons() {
        let mut run = example_run();
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
    fn samples_partly_outside_a_span_do_not_count() {
        let run = example_run();
        let (used, replies) = run.between(2_100, 3_100);
        assert_eq!((used.seconds, replies), (0.75, 6_000));
    }
}
