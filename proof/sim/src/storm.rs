//! A run of any world: `steps` steps of storm, then calm until everything has ended.

use std::time::Duration;

use spillway_transport::Time;

/// Bound of the steps after the storm.
const CALM_STEPS_MAX: u64 = 10_000_000;
/// To check whether everything has ended is expensive: once in this many steps.
const CHECK_EVERY: u64 = 256;

pub(crate) trait Stormy {
    /// Handles the next event. Returns false if there are no more.
    fn step(&mut self) -> bool;
    /// Stops faults and new clients, and restarts what was shut down.
    fn calm_down(&mut self);
    /// Descriptions of what has not ended.
    fn leftovers(&self) -> Vec<String>;
    /// Grows whenever the world makes progress.
    fn progress(&self) -> u64;
    /// Whether a check has failed: the run ends.
    fn has_violations(&self) -> bool;
    fn now(&self) -> Time;
}

/// Runs a world. In the calm the world must make progress within `progress_within` of virtual time until everything
/// has ended. Returns the steps taken.
pub(crate) fn storm_and_calm(world: &mut impl Stormy, steps: u64, progress_within: Duration) -> u64 {
    let mut taken = 0;
    while taken < steps && !world.has_violations() && world.step() {
        taken += 1;
    }
    world.calm_down();
    let limit = taken + CALM_STEPS_MAX;
    let (mut progress, mut since) = (0, world.now());
    while taken < limit && !world.has_violations() && world.step() {
        taken += 1;
        if taken % CHECK_EVERY != 0 {
            continue;
        }
        let latest = world.progress();
        if latest != progress {
            (progress, since) = (latest, world.now());
        }
        if world.leftovers().is_empty() || world.now().since(since) > progress_within {
            break;
        }
    }
    taken
}
