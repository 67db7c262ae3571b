//! Calibration before a burst: the server's quota for this machine, the direct capacity under it, and the SLA. [`rule`]
//! computes capacity and quota from measured costs.

pub mod rule;

use std::time::Duration;

use spillway_lab::Quota;

use crate::error::Error;
use crate::goodput::{Driver, RampResult, Tally, Timing};
use crate::measure::{OTHERS_PERCENT_MAX, Step, Used, measure_until_valid, stopped};
use crate::neighbours;
use crate::ramp::Ramp;
use crate::relief::sla_us;
use crate::scene::{Scene, ServerShare, System};
use crate::table::grouped;
use rule::{BURST_TIMES, CAPACITY_MIN_PER_S, Costs};

pub(crate) const FLOOR_PER_S: f64 = 100.0;
pub(crate) const LIMIT_PER_S: f64 = 400_000.0;
/// Step length of the calibration's ramp. Short steps suffice: the ramp only scales the burst and yields no published
/// figure.
const STEP: Duration = Duration::from_millis(1_500);
/// Start of the ramp, as a multiple of the expected capacity.
const RAMP_START: f64 = 0.6;
/// End of the ramp, as a multiple of the expected capacity: high enough to show that a quota was too large.
const RAMP_END: f64 = 2.0;
const CORRECTIONS_MAX: usize = 2;
/// The unloaded p99 is measured at this share of the capacity.
const LIGHT_SHARE: f64 = 0.2;
const LIGHT_STEP: Duration = Duration::from_secs(3);
const LIGHT_STEPS_MAX: usize = 3;
const COST_STEP: Duration = Duration::from_millis(1_200);
/// Maximum number of rates at which the costs of a burst are measured.
const COST_STEPS_MAX: usize = 4;
/// Costs measured at this share of the capacity that they yield, or above, are not measured again.
const COST_RATE_NEAR: f64 = 0.95;
const ATTEMPTS_MAX: u32 = 3;
/// Share of a core, in percent, whose cost is measured at [`CAPACITY_MIN_PER_S`]; the rate grows with it.
const SMALL_PERCENT: f64 = 10.0;
/// Assumed goodput of the helped server, as a multiple of the direct capacity.
const HELPED_TIMES: f64 = 5.0;

/// Whether to calibrate while other processes use the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Neighbours {
    /// Calibration fails, and the error names the processes.
    #[default]
    Refused,
    /// Calibration goes on and adds a note.
    Accepted,
}

/// Result of a calibration.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    /// Measured costs of a request; `None` if the capacity or the server's share of a core was given.
    pub costs: Option<Costs>,
    /// The server's quota, computed from costs or given; `None` for a whole core.
    pub quota: Option<Quota>,
    /// Requests a second that the server serves within the SLA, without shim and helper.
    pub direct_per_s: f64,
    /// The p99 at a fifth of the expected capacity, in µs; `None` if more than 1 % stayed unanswered.
    pub p99_at_fifth_us: Option<u64>,
    /// The SLA of the run, in µs.
    pub sla_us: u64,
    /// Reservations about these figures.
    pub notes: Vec<String>,
    /// Replies and failures.
    pub tally: Tally,
}

impl Calibration {
    /// One or two lines for the terminal.
    pub fn description(&self) -> String {
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

/// Sets the server's quota by the machine's speed, fixes the SLA, and finds the direct capacity by a ramp.
///
/// # Errors
/// The machine is too slow, or other processes use it: a wrong calibration would spoil every later measurement.
pub fn calibrate(scene: &mut Scene, timing: Timing, neighbours: Neighbours) -> Result<Calibration, Error> {
    if let ServerShare::Percent(percent) = scene.setting().server_share {
        return calibrate_share(scene, percent, timing, neighbours);
    }
    let mut tally = Tally::default();
    let (costs, expected_per_s, disturbance) = measure_costs(scene, timing, neighbours, &mut tally)?;
    let mut quota = costs.quota(expected_per_s);
    scene.set_quota(Some(quota))?;
    let mut driver = Driver::start(scene, System::Plain, timing)?;
    let p99_at_fifth_us = p99_at_fifth_us(&mut driver, expected_per_s)?;
    tally.add(&driver.finish()?);
    // Without a p99 the SLA is its minimum.
    let sla_us = sla_us(p99_at_fifth_us.unwrap_or(0));
    let mut ramped = ramp(scene, expected_per_s, sla_us, timing, &mut tally)?;
    for _ in 0..CORRECTIONS_MAX {
        if rule::is_disturbed(&ramped.goodput, expected_per_s) {
            break;
        }
        let found_per_s = ramped.goodput.kept_per_s.unwrap_or(0.0);
        let Some(corrected) = rule::corrected(quota, expected_per_s, found_per_s) else { break };
        quota = corrected;
        scene.set_quota(Some(quota))?;
        ramped = ramp(scene, expected_per_s, sla_us, timing, &mut tally)?;
    }
    let mut notes: Vec<String> = disturbance.into_iter().chain(ramped.trouble.iter().cloned()).collect();
    let kept_per_s = if rule::is_disturbed(&ramped.goodput, expected_per_s) {
        notes.push(
            "the ramp was disturbed below the server's limit, so the capacity is computed from costs alone"
                .into(),
        );
        Some(expected_per_s)
    } else {
        ramped.goodput.kept_per_s
    };
    let Some(direct_per_s) = kept_per_s else {
        let trouble = ramped.trouble.unwrap_or_else(|| format!("not even at {FLOOR_PER_S}/s"));
        return Err(Error::Usage(format!(
            "this machine does not keep a p99 of {:.1} ms, even unloaded ({trouble}): try again when it is quieter",
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

/// Fixes the SLA and finds the direct capacity of a server with a given share of a core. Other hosts may then
/// limit a burst; the CPU times of its steps show this.
fn calibrate_share(
    scene: &mut Scene,
    percent: f64,
    timing: Timing,
    neighbours: Neighbours,
) -> Result<Calibration, Error> {
    let mut meter = CostMeter { neighbours, disturbance: None };
    let mut tally = Tally::default();
    let quota = scene.setting().server_share.quota();
    scene.set_quota(None)?;
    let server_us =
        meter.server_cost_us(scene, CAPACITY_MIN_PER_S * percent / SMALL_PERCENT, timing, &mut tally)?;
    if server_us == 0.0 {
        return Err(Error::process("the server sent no reply while its cost was measured", ""));
    }
    let expected_per_s = percent * 1e4 / server_us;
    scene.set_quota(quota)?;
    let mut driver = Driver::start(scene, System::Plain, timing)?;
    let p99_at_fifth_us = p99_at_fifth_us(&mut driver, expected_per_s)?;
    let sla_us = sla_us(p99_at_fifth_us.unwrap_or(0));
    // Requests cost less at high rates, so the capacity may be several times what a light load suggests.
    let plan = Ramp::searching(expected_per_s * RAMP_START, FLOOR_PER_S, LIMIT_PER_S);
    let ramped = driver.ramp(plan, sla_us)?;
    tally.add(&driver.finish()?);
    let Some(direct_per_s) = ramped.goodput.kept_per_s else {
        let trouble = ramped.trouble.unwrap_or_else(|| format!("not even at {FLOOR_PER_S}/s"));
        return Err(Error::Usage(format!(
            "the server does not keep a p99 of {:.1} ms with {percent:.0} % of a core ({trouble}): give it a larger share",
            sla_us as f64 / 1000.0
        )));
    };
    let notes = meter.disturbance.into_iter().chain(ramped.trouble).collect();
    Ok(Calibration { costs: None, quota, direct_per_s, p99_at_fifth_us, sla_us, notes, tally })
}

/// Uses the operator's figure for the direct capacity. Measures only the server's cost, for its quota, even while other
/// processes use the machine.
pub fn use_given_capacity(
    scene: &mut Scene,
    direct_per_s: f64,
    timing: Timing,
) -> Result<Calibration, Error> {
    scene.set_quota(None)?;
    let mut driver = Driver::start(scene, System::Plain, timing)?;
    let step = driver.measure(direct_per_s, COST_STEP)?;
    let tally = driver.finish()?;
    let costs = Costs { server_us: us_per_reply(&step, step.used.server_s()), ..Costs::default() };
    let quota = costs.quota(direct_per_s);
    scene.set_quota(Some(quota))?;
    let notes = vec!["the capacity was given, not measured".into()];
    let sla_us = sla_us(0);
    Ok(Calibration { quota: Some(quota), direct_per_s, sla_us, notes, tally, ..Calibration::default() })
}

/// Measures the costs of a request without a quota: direct at the capacity, and helped in a burst. Returns
/// the costs, the capacity that they allow in requests a second, and the disturbance that
/// [`Neighbours::Accepted`] allowed, if any.
fn measure_costs(
    scene: &mut Scene,
    timing: Timing,
    neighbours: Neighbours,
    tally: &mut Tally,
) -> Result<(Costs, f64, Option<String>), Error> {
    let mut meter = CostMeter { neighbours, disturbance: None };
    scene.set_quota(None)?;
    let (placement, speed) = (scene.setting().placement, scene.speed());
    let mut expected_per_s = CAPACITY_MIN_PER_S;
    let mut costs =
        Costs { server_us: meter.server_cost_us(scene, expected_per_s, timing, tally)?, ..Costs::default() };
    let mut driver = Driver::start(scene, System::Helped, timing)?;
    // Costs of a request fall as the rate rises, so the rate approaches the machine's capacity from below.
    for _ in 0..COST_STEPS_MAX {
        let step = meter.measure(&mut driver, BURST_TIMES * expected_per_s)?;
        costs.helper_us = us_per_reply(&step, step.used.helper_s);
        costs.clients_us = us_per_reply(&step, step.used.clients_s);
        costs.bridge_us = us_per_reply(&step, step.used.bridge_s);
        if step.replies_per_s == 0.0 {
            return Err(Error::process("the helped server sent no reply while costs were measured", ""));
        }
        let found_per_s = costs.capacity_per_s(&placement, speed);
        let is_near = found_per_s <= expected_per_s / COST_RATE_NEAR;
        expected_per_s = found_per_s;
        driver.quiesce()?;
        if is_near {
            break;
        }
    }
    tally.add(&driver.finish()?);
    let too_slow = |refusal: rule::TooSlow| Error::TooSlow(refusal.to_string());
    costs.checked_capacity_per_s(&placement, speed).map_err(too_slow)?;
    costs.server_us = meter.server_cost_us(scene, expected_per_s, timing, tally)?;
    Ok((costs, expected_per_s, meter.disturbance))
}

/// Measures costs while the machine is quiet. [`Neighbours::Accepted`]: records disturbances, does not fail.
struct CostMeter {
    neighbours: Neighbours,
    disturbance: Option<String>,
}

impl CostMeter {
    fn server_cost_us(
        &mut self,
        scene: &mut Scene,
        rate_per_s: f64,
        timing: Timing,
        tally: &mut Tally,
    ) -> Result<f64, Error> {
        let mut driver = Driver::start(scene, System::Plain, timing)?;
        let step = self.measure(&mut driver, rate_per_s)?;
        tally.add(&driver.finish()?);
        Ok(us_per_reply(&step, step.used.server_s()))
    }

    /// Measures at a rate, and repeats the step while other processes disturb it. Fails if they still do after
    /// [`ATTEMPTS_MAX`] attempts and [`Neighbours::Refused`] is set.
    fn measure(&mut self, driver: &mut Driver<'_>, rate_per_s: f64) -> Result<Step, Error> {
        let step = measure_until_valid(
            ATTEMPTS_MAX,
            || driver.measure(rate_per_s, COST_STEP),
            |step| disturbance(&step.used).is_none(),
        )?;
        let Some(why) = disturbance(&step.used) else { return Ok(step) };
        if self.neighbours == Neighbours::Accepted {
            self.disturbance = Some(format!("{why} while costs were measured"));
            return Ok(step);
        }
        let processes = neighbours::busiest();
        let processes = if processes.is_empty() { processes } else { format!(" (now: {processes})") };
        Err(Error::Disturbed(format!("{why}{processes}")))
    }
}

/// Why the machine was not quiet enough: other processes, or stolen time.
fn disturbance(used: &Used) -> Option<String> {
    let percent = used.percent(used.others_s);
    (percent > OTHERS_PERCENT_MAX)
        .then(|| format!("others use {percent:.0} % of a core"))
        .or_else(|| stopped(used))
}

/// CPU time for each reply, in µs. Counts replies, not requests: slow cores answer fewer requests than are offered.
fn us_per_reply(step: &Step, seconds: f64) -> f64 {
    let replies = step.replies_per_s * step.used.seconds;
    if replies > 0.0 { seconds * 1e6 / replies } else { 0.0 }
}

fn ramp(
    scene: &mut Scene,
    expected_per_s: f64,
    sla_us: u64,
    timing: Timing,
    tally: &mut Tally,
) -> Result<RampResult, Error> {
    let mut driver = Driver::start(scene, System::Plain, Timing { step: STEP, ..timing })?;
    let plan = Ramp::searching(expected_per_s * RAMP_START, FLOOR_PER_S, expected_per_s * RAMP_END);
    let ramped = driver.ramp(plan, sla_us)?;
    tally.add(&driver.finish()?);
    Ok(ramped)
}

/// The p99 at a fifth of a capacity, in µs: the lowest of several steps. A p99 that one stall of the machine raised
/// would set an SLA that every system keeps at any rate.
pub(crate) fn p99_at_fifth_us(driver: &mut Driver<'_>, direct_per_s: f64) -> Result<Option<u64>, Error> {
    let mut lowest_us: Option<u64> = None;
    for _ in 0..LIGHT_STEPS_MAX {
        let p99_us = driver.measure(direct_per_s * LIGHT_SHARE, LIGHT_STEP)?.span.p99_us();
        lowest_us = lowest_us.into_iter().chain(p99_us).min();
        // The SLA is at its minimum; a lower p99 would not change it.
        if lowest_us.is_some_and(|p99_us| sla_us(p99_us) == sla_us(0)) {
            break;
        }
    }
    Ok(lowest_us)
}

/// Measures the saturated throughput of the helped server: replies a second, late ones included.
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
    fn costs_are_divided_by_replies() {
        let used = Used { seconds: 2.0, server_process_s: 0.1, server_interface_s: 0.1, ..Used::default() };
        let step = Step { rate_per_s: 9_000.0, replies_per_s: 4_000.0, used, ..Step::default() };
        assert!((us_per_reply(&step, step.used.server_s()) - 25.0).abs() < 1e-9);
        assert_eq!(us_per_reply(&Step::default(), 1.0), 0.0, "without replies the cost should be 0");
    }

    #[test]
    fn other_processes_and_stolen_time_are_disturbances() {
        let used = Used { seconds: 1.0, others_s: 1.88, ..Used::default() };
        assert_eq!(disturbance(&used).unwrap(), "others use 188 % of a core");
        let used = Used { seconds: 1.0, stolen_s: 0.05, ..Used::default() };
        assert!(disturbance(&used).unwrap().contains("stopped for 50 ms"));
        assert_eq!(disturbance(&Used { seconds: 1.0, others_s: 0.05, ..Used::default() }), None);
    }
}
