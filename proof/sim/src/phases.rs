//! A run of any world: a fault phase of `steps` steps, then a calm phase until everything has ended.

use std::time::Duration;

use spillway_transport::Time;

const CALM_STEPS_MAX: u64 = 10_000_000;
/// Interval, in steps, of the check whether everything has ended, which is expensive.
const CHECK_EVERY: u64 = 256;

pub(crate) trait PhasedWorld {
    /// Handles the next event. Returns false if the event queue is empty.
    fn step(&mut self) -> bool;
    /// Stops faults and new clients, and restarts what was shut down.
    fn begin_calm_phase(&mut self);
    /// Descriptions of everything that has not ended.
    fn leftovers(&self) -> Vec<String>;
    /// Grows whenever the world makes progress.
    fn progress(&self) -> u64;
    /// Whether a check has failed; the run then ends.
    fn has_violations(&self) -> bool;
    fn now(&self) -> Time;
}

/// Runs a world. In the calm phase it must make progress within `progress_within` of virtual time until everything
/// has ended. Returns the steps taken.
pub(crate) fn run_both_phases(world: &mut impl PhasedWorld, steps: u64, progress_within: Duration) -> u64 {
    let mut steps_taken = 0;
    while steps_taken < steps && !world.has_violations() && world.step() {
        steps_taken += 1;
    }
    world.begin_calm_phase();
    let steps_max = steps_taken + CALM_STEPS_MAX;
    let (mut progress, mut last_progress_at) = (0, world.now());
    while steps_taken < steps_max && !world.has_violations() && world.step() {
        steps_taken += 1;
        if steps_taken % CHECK_EVERY != 0 {
            continue;
        }
        let latest = world.progress();
        if latest != progress {
            (progress, last_progress_at) = (latest, world.now());
        }
        if world.leftovers().is_empty() || world.now().since(last_progress_at) > progress_within {
            break;
        }
    }
    steps_taken
}
