//! Runs a [`Ramp`] on a system: offers its rates and decides for each step whether the SLA was kept.

use std::time::{Duration, Instant};

use spillway_load::Report;

use crate::error::Error;
use crate::generator::{BIN_MS, BIN_REPORT_DELAY, Generators, Order};
use crate::measure::Step;
use crate::ramp::{Goodput, Next, Ramp, Verdict};
use crate::results::Check;
use crate::scene::{Scene, System};

/// Timeout for draining the backlog of a failed step.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Offered rate while connections move before a ramp, in requests a second. A connection's move ends with its
/// first reply, so it needs requests.
const MOVE_RATE_PER_S: f64 = 1_500.0;
/// Rate that saturates a system, as a multiple of its goodput.
const SATURATION_TIMES: f64 = 2.5;

/// Lengths of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time with load before the first measurement.
    pub warm_up: Duration,
    /// Pause after each change of rate.
    pub settle: Duration,
    /// Length of a step; at least 2 s for published figures.
    pub step: Duration,
    /// Length of a probe.
    pub probe: Duration,
    /// Steps that would not end by this time are not started.
    pub deadline: Option<Instant>,
}

impl Default for Timing {
    fn default() -> Timing {
        let ms = Duration::from_millis;
        Timing { warm_up: ms(2_000), settle: ms(300), step: ms(2_000), probe: ms(600), deadline: None }
    }
}

/// Results of a ramp.
#[derive(Clone, Debug, Default)]
pub struct RampResult {
    /// The rates of the last kept and of the first failed step.
    pub goodput: Goodput,
    /// The step with the highest rate that kept the SLA.
    pub best: Option<Step>,
    /// A step at a saturating rate, if requested.
    pub saturated: Option<Step>,
    /// Why the ramp ended before the system failed.
    pub trouble: Option<String>,
    /// Number of repeated steps.
    pub spoilt: u32,
    /// Replies and failures.
    pub tally: Tally,
}

/// Counts of replies and failures over several runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All replies.
    pub replies: u64,
    /// Replies with a wrong byte.
    pub wrong: u64,
    /// Requests sent and never answered.
    pub lost: u64,
    /// Broken connections.
    pub resets: u64,
    /// Connections that could not be moved.
    pub not_moved: u64,
    /// The first problems of the runs, for people.
    pub problems: Vec<String>,
}

const PROBLEMS_MAX: usize = 8;

impl Tally {
    /// Adds the report of a run.
    pub fn add_report(&mut self, report: &Report) {
        let summary = report.span(0, u64::MAX).summary();
        self.replies += summary.answered;
        self.wrong += summary.wrong;
        self.lost += summary.lost;
        self.resets += summary.resets;
        self.not_moved += report.moves.iter().map(|moved| u64::from(moved.failed)).sum::<u64>();
        self.add_problems(&report.problems);
    }

    /// Adds another tally.
    pub fn add(&mut self, other: &Tally) {
        self.replies += other.replies;
        self.wrong += other.wrong;
        self.lost += other.lost;
        self.resets += other.resets;
        self.not_moved += other.not_moved;
        self.add_problems(&other.problems);
    }

    /// Checks that must hold at any speed of the machine.
    pub fn checks(&self) -> Vec<Check> {
        let replies = format!("{} replies", self.replies);
        let mut checks = vec![
            Check::none("wrong", self.wrong, &replies),
            Check::none("lost", self.lost, &replies),
            Check::none("resets", self.resets, &replies),
            Check::none("not_moved", self.not_moved, "all moves"),
        ];
        if let Some(problem) = self.problems.first() {
            for check in checks.iter_mut().filter(|check| !check.ok) {
                check.detail.push_str(&format!(" (first: {problem})"));
            }
        }
        checks
    }

    fn add_problems(&mut self, problems: &[String]) {
        let room = PROBLEMS_MAX.saturating_sub(self.problems.len());
        self.problems.extend(problems.iter().take(room).cloned());
    }
}

/// Running clients of one system.
#[derive(Debug)]
pub struct Driver<'a> {
    scene: &'a mut Scene,
    system: System,
    generators: Generators,
    timing: Timing,
}

impl<'a> Driver<'a> {
    /// Starts the clients of a system, moves them to the helper if needed, and warms up.
    pub fn start(scene: &'a mut Scene, system: System, timing: Timing) -> Result<Driver<'a>, Error> {
        let mut generators = scene.start(&scene.clients(system))?;
        generators.begin()?;
        generators.order(&Order::Rate(MOVE_RATE_PER_S))?;
        if system == System::Helped {
            let moved = generators.move_to_helper()?;
            if moved.failed > 0 || !moved.complete {
                let what = format!(
                    "{} of {} connections could not be moved to the helper",
                    moved.failed, moved.connections
                );
                return Err(Error::process(what, generators.problems().join("\n")));
            }
        }
        std::thread::sleep(timing.warm_up);
        Ok(Driver { scene, system, generators, timing })
    }

    /// Offers a rate, waits for `settle`, and measures for `length`.
    pub fn measure(&mut self, rate_per_s: f64, length: Duration) -> Result<Step, Error> {
        self.generators.order(&Order::Rate(rate_per_s))?;
        std::thread::sleep(self.timing.settle);
        let from_ms = self.generators.now_ms().div_ceil(BIN_MS) * BIN_MS;
        let to_ms = from_ms + u64::try_from(length.as_millis()).unwrap_or(u64::MAX) / BIN_MS * BIN_MS;
        self.generators.sleep_until_ms(from_ms);
        let (before, answered) = (self.scene.snapshot()?, self.generators.answered());
        self.generators.sleep_until_ms(to_ms);
        let (after, replies) = (self.scene.snapshot()?, self.generators.answered() - answered);
        std::thread::sleep(BIN_REPORT_DELAY);
        self.generators.check()?;
        self.scene.check()?;
        Ok(Step::new(rate_per_s, &self.generators.bins(from_ms, to_ms), after.since(&before), replies))
    }

    /// Runs a ramp.
    pub fn ramp(&mut self, mut plan: Ramp, sla_us: u64) -> Result<RampResult, Error> {
        let mut best = None;
        loop {
            let (rate, length, is_probe) = match plan.next() {
                Next::Probe(rate) => (rate, self.timing.probe, true),
                Next::Step(rate) => (rate, self.timing.step, false),
                Next::Done => break,
            };
            let ends_at = Instant::now() + self.timing.settle + length + BIN_REPORT_DELAY;
            if self.timing.deadline.is_some_and(|deadline| ends_at > deadline) {
                plan.give_up("no time left");
                break;
            }
            let step = self.measure(rate, length)?;
            let is_kept = step.span.keeps(sla_us);
            let quota = self.scene.setting().quota;
            let spoilt = match self.system {
                System::Plain => step.spoilt_direct(quota, sla_us),
                _ => step.spoilt(quota, sla_us),
            }
            .filter(|_| !is_probe);
            let verdict =
                spoilt.map_or(if is_kept { Verdict::Kept } else { Verdict::Failed }, Verdict::Spoilt);
            print_step(&step, sla_us, &verdict);
            plan.record(&verdict);
            if verdict == Verdict::Kept && !is_probe {
                best = Some(step);
            }
            if !is_kept && plan.next() != Next::Done {
                self.quiesce()?;
            }
        }
        Ok(RampResult {
            goodput: plan.goodput(),
            best,
            trouble: plan.trouble().map(str::to_owned),
            spoilt: plan.spoilt(),
            ..RampResult::default()
        })
    }

    /// Measures saturated throughput, at [`SATURATION_TIMES`] times `capacity_per_s`.
    pub fn saturate(&mut self, capacity_per_s: f64) -> Result<Step, Error> {
        self.measure(capacity_per_s * SATURATION_TIMES, self.timing.step / 2)
    }

    /// Sets the rate to 0 and waits until no request is under way, at most for [`DRAIN_TIMEOUT`].
    pub fn quiesce(&mut self) -> Result<(), Error> {
        self.generators.quiesce(DRAIN_TIMEOUT)
    }

    /// Stops the clients and returns their counts.
    pub fn finish(self) -> Result<Tally, Error> {
        let mut tally = Tally::default();
        tally.add_report(&self.generators.finish()?);
        Ok(tally)
    }
}

/// Prints a step if SPILLWAY_BENCH_STEPS is set, to find out why a ramp ended.
fn print_step(step: &Step, sla_us: u64, verdict: &Verdict) {
    if std::env::var_os("SPILLWAY_BENCH_STEPS").is_some() {
        eprintln!("  {}: {verdict:?}", step.summary(sla_us));
    }
}

/// Starts the clients of a system, runs a ramp, and stops them. With `saturate`, also measures saturated throughput.
pub fn ramp(
    scene: &mut Scene,
    system: System,
    timing: Timing,
    plan: Ramp,
    sla_us: u64,
    saturate: bool,
) -> Result<RampResult, Error> {
    let mut driver = Driver::start(scene, system, timing)?;
    let mut ramped = driver.ramp(plan, sla_us)?;
    if let (true, Some(kept_per_s)) = (saturate, ramped.goodput.kept_per_s) {
        ramped.saturated = Some(driver.saturate(kept_per_s)?);
    }
    ramped.tally = driver.finish()?;
    Ok(ramped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_load::report::Bin;

    #[test]
    fn lost_replies_and_resets_fail_their_checks() {
        let mut report = Report { bins: vec![Bin { offered: 12, ..Bin::default() }], ..Report::default() };
        report.bins[0].direct.answered = 9;
        report.bins[0].helped.lost = 2;
        report.bins[0].helped.resets = 1;
        report.problems.push("connection 7 is lost".into());
        let mut tally = Tally::default();
        assert!(tally.checks().iter().all(|check| check.ok));
        tally.add_report(&report);
        tally.add(&tally.clone());
        assert_eq!((tally.replies, tally.lost, tally.resets, tally.wrong), (18, 4, 2, 0));
        let checks = tally.checks();
        let failed: Vec<_> =
            checks.iter().filter(|check| !check.ok).map(|check| check.name.as_str()).collect();
        assert_eq!(failed, ["lost", "resets"]);
        assert!(checks[1].detail.contains("4 of 18 replies (first: connection 7 is lost)"));
    }
}
