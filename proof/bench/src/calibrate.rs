//! What must be known before a burst can be made: how large a server this machine can show, how much it serves alone, and
//! the SLA. The rule by which costs become a capacity and a quota is in [`rule`].

pub mod rule;

use std::time::Duration;

use spillway_lab::Quota;

use crate::error::Error;
use crate::goodput::{Driver, Ramped, Tally, Timing};
use crate::measure::{OTHERS_PERCENT_MAX, Step, Used, again, stopped};
use crate::neighbours;
use crate::ramp::Ramp;
use crate::relief::sla_us;
use crate::scene::{Scene, System};
use crate::table::grouped;
use rule::{BURST_TIMES, CAPACITY_MIN_PER_S, Costs};

/// The least and the most that ramps try.
pub(crate) const FLOOR_PER_S: f64 = 100.0;
pub(crate) const LIMIT_PER_S: f64 = 400_000.0;
/// Steps of this ramp: it only has to say how large a burst must be, and figures come from ramps of their own.
const SHORT_STEP: Duration = Duration::from_millis(1_500);
/// The part of the aim at which the ramp begins.
const BEGIN: f64 = 0.6;
/// The ramp goes up to so many times the aim: enough to see that a quota was too large.
const RAMP_TIMES_MAX: f64 = 2.0;
/// How often a quota is corrected, at most.
const CORRECTIONS_MAX: usize = 2;
/// The part of the capacity at which the p99 is taken.
const FIFTH: f64 = 0.2;
/// How long it is looked at, each time.
const FIFTH_FOR: Duration = Duration::from_secs(3);
/// How often, at most.
const LOOKS_MAX: usize = 3;
/// How long costs are measured at a rate.
const COST_FOR: Duration = Duration::from_millis(1_200);
/// At how many rates the burst's costs are measured, at most.
const COST_LOOKS_MAX: usize = 4;
/// A capacity that is so near to the one at which costs were measured needs no other look.
const NEAR: f64 = 0.95;
/// How often a measurement is done again while others are at work.
const TRIES: u32 = 3;
/// A helped server is asked for so many times the direct capacity, to see how much it can do at all.
const HELPED_TIMES: f64 = 5.0;

/// Whether a machine that others use is calibrated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Neighbours {
    /// No: the calibration fails, and names them.
    #[default]
    Refused,
    /// Yes, with a note.
    Accepted,
}

/// What calibration found.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    /// What requests cost, where that was measured.
    pub costs: Option<Costs>,
    /// The server's quota, if costs have decided it.
    pub quota: Option<Quota>,
    /// The direct capacity, without shim, within the SLA.
    pub direct_per_s: f64,
    /// The p99 at a fifth of the capacity that was aimed at, in µs, if there was one.
    pub p99_at_fifth_us: Option<u64>,
    /// The SLA of the run, in µs.
    pub sla_us: u64,
    /// What must be known about these figures.
    pub notes: Vec<String>,
    /// Replies and failures.
    pub tally: Tally,
}

impl Calibration {
    /// For people, in a line or two.
    pub fn words(&self) -> String {
        let costs = self.costs.map_or(String::new(), |costs| format!("a request costs: {costs}\n"));
        let quota =
            self.quota.map_or("no quota".into(), |quota| format!("{:.1} % of a core", quota.percent_of_core));
        format!(
            "{costs}with {quota} the server alone serves {}/s within {:.1} ms",
            grouped(self.direct_per_s),
            self.sla_us as f64 / 1000.0
        )
    }
}

/// Sizes the server to the machine, fixes the SLA, and finds the direct capacity by a ramp. Sets the server's quota.
///
/// # Errors
/// When the machine is too slow, or when others use it: a spoilt calibration would spoil everything after it.
pub fn calibrate(scene: &mut Scene, timing: Timing, neighbours: Neighbours) -> Result<Calibration, Error> {
    let mut tally = Tally::default();
    let (costs, aimed_per_s, busy) = measured_costs(scene, timing, neighbours, &mut tally)?;
    let mut quota = costs.quota(aimed_per_s);
    scene.set_quota(Some(quota))?;
    let mut driver = Driver::start(scene, System::Plain, timing)?;
    let p99_at_fifth_us = p99_at_fifth_us(&mut driver, aimed_per_s)?;
    tally.add(&driver.finish()?);
    // A light load that is not answered at all says nothing about an SLA.
    let sla_us = sla_us(p99_at_fifth_us.unwrap_or(0));
    let mut ramped = ramp(scene, aimed_per_s, sla_us, timing, &mut tally)?;
    for _ in 0..CORRECTIONS_MAX {
        if rule::is_disturbed(&ramped.found, aimed_per_s) {
            break;
        }
        let found = ramped.found.kept_per_s.unwrap_or(0.0);
        let Some(corrected) = rule::corrected(quota, aimed_per_s, found) else { break };
        quota = corrected;
        scene.set_quota(Some(quota))?;
        ramped = ramp(scene, aimed_per_s, sla_us, timing, &mut tally)?;
    }
    let mut notes: Vec<String> = busy.into_iter().chain(ramped.trouble.iter().cloned()).collect();
    let kept_per_s = if rule::is_disturbed(&ramped.found, aimed_per_s) {
        notes.push(
            "the machine kept the ramp from the server's limit, so its capacity follows from costs alone"
                .into(),
        );
        Some(aimed_per_s)
    } else {
        ramped.found.kept_per_s
    };
    let Some(direct_per_s) = kept_per_s else {
        let trouble = ramped.trouble.unwrap_or_else(|| format!("not even {FLOOR_PER_S}/s"));
        return Err(Error::Usage(format!(
            "this machine keeps no p99 of {:.1} ms, even unloaded ({trouble}): try again when it is quieter",
            sla_us as f64 / 1000.0
        )));
    };
    if p99_at_fifth_us.is_none() {
        notes.push("more than 1 % unanswered at a fifth of the capacity".into());
    }
    Ok(Calibration {
        costs: Some(costs),
        quota: Some(quota),
        direct_per_s,
        p99_at_fifth_us,
        sla_us,
        notes,
        tally,
    })
}

/// Takes somebody's word for the direct capacity: only the server's cost is measured, for its quota, whatever others do
/// meanwhile.
pub fn given(scene: &mut Scene, direct_per_s: f64, timing: Timing) -> Result<Calibration, Error> {
    scene.set_quota(None)?;
    let mut driver = Driver::start(scene, System::Plain, timing)?;
    let step = driver.measure(direct_per_s, COST_FOR)?;
    let tally = driver.finish()?;
    let costs = Costs { server_us: each_us(&step, step.used.server_s()), ..Costs::default() };
    let quota = costs.quota(direct_per_s);
    scene.set_quota(Some(quota))?;
    let notes = vec!["the capacity was given, not measured".into()];
    let sla_us = sla_us(0);
    Ok(Calibration { quota: Some(quota), direct_per_s, sla_us, notes, tally, ..Calibration::default() })
}

/// What requests cost without a quota, direct at the capacity and helped in the burst, and the capacity that follows; and
/// what was wrong with the machine meanwhile, if that is accepted.
fn measured_costs(
    scene: &mut Scene,
    timing: Timing,
    neighbours: Neighbours,
    tally: &mut Tally,
) -> Result<(Costs, f64, Option<String>), Error> {
    let mut quiet = Quiet { neighbours, busy: None };
    scene.set_quota(None)?;
    let (placement, speed) = (scene.setting().placement, scene.speed());
    let mut aimed_per_s = CAPACITY_MIN_PER_S;
    let mut costs =
        Costs { server_us: quiet.server_cost(scene, aimed_per_s, timing, tally)?, ..Costs::default() };
    let mut driver = Driver::start(scene, System::Helped, timing)?;
    // A request costs less when there are more of them: each look is at a higher rate, and never at one that is too high.
    for _ in 0..COST_LOOKS_MAX {
        let step = quiet.measure(&mut driver, BURST_TIMES * aimed_per_s)?;
        costs.helper_us = each_us(&step, step.used.helper_s);
        costs.clients_us = each_us(&step, step.used.clients_s);
        costs.bridge_us = each_us(&step, step.used.bridge_s);
        if step.replies_per_s == 0.0 {
            return Err(Error::process("no reply while costs were measured", ""));
        }
        let found_per_s = costs.capacity_per_s(&placement, speed);
        let near = found_per_s <= aimed_per_s / NEAR;
        aimed_per_s = found_per_s;
        driver.quiesce()?;
        if near {
            break;
        }
    }
    tally.add(&driver.finish()?);
    let too_slow = |refusal: rule::TooSlow| Error::Usage(refusal.to_string());
    costs.checked_capacity_per_s(&placement, speed).map_err(too_slow)?;
    costs.server_us = quiet.server_cost(scene, aimed_per_s, timing, tally)?;
    Ok((costs, aimed_per_s, quiet.busy))
}

/// Measures while the machine is quiet, or notes that it was not.
struct Quiet {
    neighbours: Neighbours,
    /// What others did, if that was accepted.
    busy: Option<String>,
}

impl Quiet {
    fn server_cost(
        &mut self,
        scene: &mut Scene,
        rate_per_s: f64,
        timing: Timing,
        tally: &mut Tally,
    ) -> Result<f64, Error> {
        let mut driver = Driver::start(scene, System::Plain, timing)?;
        let step = self.measure(&mut driver, rate_per_s)?;
        tally.add(&driver.finish()?);
        Ok(each_us(&step, step.used.server_s()))
    }

    /// Measures at a rate, again while others are at work, and fails if they do not stop and are not accepted.
    fn measure(&mut self, driver: &mut Driver<'_>, rate_per_s: f64) -> Result<Step, Error> {
        let step =
            again(TRIES, || driver.measure(rate_per_s, COST_FOR), |step| others(&step.used).is_none())?;
        let Some(why) = others(&step.used) else { return Ok(step) };
        if self.neighbours == Neighbours::Accepted {
            self.busy = Some(format!("{why} while costs were measured"));
            return Ok(step);
        }
        let named = neighbours::busiest();
        let named = if named.is_empty() { named } else { format!(" (now: {named})") };
        Err(Error::Usage(format!(
            "{why}{named}, which would spoil the calibration. Wait until the machine is quiet, give the server's capacity \
             with --capacity N (requests a second), or go on with --anyway"
        )))
    }
}

/// What others took of the machine meanwhile, if it was too much.
fn others(used: &Used) -> Option<String> {
    let percent = used.percent(used.others_s);
    (percent > OTHERS_PERCENT_MAX)
        .then(|| format!("others use {percent:.0} % of a core"))
        .or_else(|| stopped(used))
}

/// CPU time for each reply, in µs: where cores are too slow for what is offered, replies are what they were used for.
fn each_us(step: &Step, seconds: f64) -> f64 {
    let replies = step.replies_per_s * step.used.seconds;
    if replies > 0.0 { seconds * 1e6 / replies } else { 0.0 }
}

fn ramp(
    scene: &mut Scene,
    aimed_per_s: f64,
    sla_us: u64,
    timing: Timing,
    tally: &mut Tally,
) -> Result<Ramped, Error> {
    let mut driver = Driver::start(scene, System::Plain, Timing { step: SHORT_STEP, ..timing })?;
    let plan = Ramp::searching(aimed_per_s * BEGIN, FLOOR_PER_S, aimed_per_s * RAMP_TIMES_MAX);
    let ramped = driver.ramp(plan, sla_us)?;
    tally.add(&driver.finish()?);
    Ok(ramped)
}

/// The p99 at a fifth of a capacity, in µs: the calmest of some looks. One stall of the machine would set an SLA that
/// every system keeps at any rate.
pub(crate) fn p99_at_fifth_us(driver: &mut Driver<'_>, direct_per_s: f64) -> Result<Option<u64>, Error> {
    let mut calmest: Option<u64> = None;
    for _ in 0..LOOKS_MAX {
        let p99_us = driver.measure(direct_per_s * FIFTH, FIFTH_FOR)?.span.p99_us();
        calmest = calmest.into_iter().chain(p99_us).min();
        // A calmer look would change nothing.
        if calmest.is_some_and(|p99_us| sla_us(p99_us) == sla_us(0)) {
            break;
        }
    }
    Ok(calmest)
}

/// Sees how much the server does at all when it is helped: replies a second, without regard to time.
pub fn helped_throughput(
    scene: &mut Scene,
    direct_per_s: f64,
    timing: Timing,
) -> Result<(Step, Tally), Error> {
    let mut driver = Driver::start(scene, System::Helped, timing)?;
    let step = driver.saturate(direct_per_s * HELPED_TIMES)?;
    Ok((step, driver.finish()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_for_each_reply() {
        let used = Used { seconds: 2.0, server_process_s: 0.1, server_interface_s: 0.1, ..Used::default() };
        let step = Step { rate_per_s: 9_000.0, replies_per_s: 4_000.0, used, ..Step::default() };
        assert!((each_us(&step, step.used.server_s()) - 25.0).abs() < 1e-9);
        assert_eq!(each_us(&Step::default(), 1.0), 0.0, "no reply, no cost");
    }

    #[test]
    fn neighbours_and_stops_spoil_a_calibration() {
        let used = Used { seconds: 1.0, others_s: 1.88, ..Used::default() };
        assert_eq!(others(&used).unwrap(), "others use 188 % of a core");
        let used = Used { seconds: 1.0, stolen_s: 0.05, ..Used::default() };
        assert!(others(&used).unwrap().contains("stopped for 50 ms"));
        assert_eq!(others(&Used { seconds: 1.0, others_s: 0.05, ..Used::default() }), None);
    }
}
