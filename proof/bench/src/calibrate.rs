//! What must be known before a burst can be made: how much the server does alone, and the SLA.

use std::time::Duration;

use crate::error::Error;
use crate::goodput::{Driver, Tally, Timing};
use crate::measure::Step;
use crate::ramp::Ramp;
use crate::relief::sla_us;
use crate::scene::{Scene, System};

/// The SLA under which the capacity is sought, in µs; the run's own SLA follows from that capacity.
const FIRST_SLA_US: u64 = 1_000;
/// Where the search begins, in requests a second.
const START_PER_S: f64 = 1_000.0;
/// The least and the most that is tried.
pub(crate) const FLOOR_PER_S: f64 = 100.0;
pub(crate) const LIMIT_PER_S: f64 = 400_000.0;
/// Steps of this ramp: it only has to say how large a burst must be, and figures come from ramps of their own.
const SHORT_STEP: Duration = Duration::from_millis(1_500);
/// The part of the capacity at which the p99 is taken.
const FIFTH: f64 = 0.2;
/// How long it is looked at, each time.
const FIFTH_FOR: Duration = Duration::from_secs(3);
/// How often, at most.
const LOOKS_MAX: usize = 3;
/// A helped server is asked for so many times the direct capacity, to see how much it can do at all.
const HELPED_TIMES: f64 = 5.0;

/// What calibration found.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    /// The direct capacity, without shim, within 1 ms.
    pub direct_per_s: f64,
    /// The p99 at a fifth of it, in µs, if there was one.
    pub p99_at_fifth_us: Option<u64>,
    /// The SLA of the run, in µs.
    pub sla_us: u64,
    /// What must be known about these figures.
    pub notes: Vec<String>,
    /// Replies and failures.
    pub tally: Tally,
}

/// Finds the direct capacity by a ramp, and fixes the SLA.
pub fn calibrate(scene: &mut Scene, timing: Timing) -> Result<Calibration, Error> {
    let mut driver = Driver::start(scene, System::Plain, Timing { step: SHORT_STEP, ..timing })?;
    let ramped = driver.ramp(Ramp::searching(START_PER_S, FLOOR_PER_S, LIMIT_PER_S), FIRST_SLA_US)?;
    let Some(direct_per_s) = ramped.found.kept_per_s else {
        let trouble = ramped.trouble.unwrap_or_else(|| format!("not even {FLOOR_PER_S}/s"));
        return Err(Error::Usage(format!(
            "this machine keeps no p99 of 1 ms, even unloaded ({trouble}): try again when it is quieter"
        )));
    };
    driver.quiesce()?;
    let p99_at_fifth_us = p99_at_fifth_us(&mut driver, direct_per_s)?;
    let mut notes: Vec<String> = ramped.trouble.into_iter().collect();
    if p99_at_fifth_us.is_none() {
        notes.push("more than 1 % unanswered at a fifth of the capacity".into());
    }
    let tally = driver.finish()?;
    // A light load that is not answered at all says nothing about an SLA.
    let sla_us = sla_us(p99_at_fifth_us.unwrap_or(0));
    Ok(Calibration { direct_per_s, p99_at_fifth_us, sla_us, notes, tally })
}

/// The p99 at a fifth of a capacity, in µs: the calmest of some looks. One stall of the machine would set an SLA that
/// every system keeps at any rate.
pub(crate) fn p99_at_fifth_us(driver: &mut Driver, direct_per_s: f64) -> Result<Option<u64>, Error> {
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
