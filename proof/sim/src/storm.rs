//! A run of any world: a storm of so many steps, then calm until everything has ended.

use std::time::Duration;

use spillway_transport::Time;

/// After the storm all must end within this many steps.
const CALM_STEPS_MAX: u64 = 10_000_000;
/// Looking whether all is quiet is dear: once in so many steps.
const LOOK_EVERY: u64 = 256;

/// What a storm goes over.
pub(crate) trait Stormy {
    /// One thing happens. False when nothing ever will.
    fn step(&mut self) -> bool;
    /// No more faults and no new clients; what was shut down comes back.
    fn calm_down(&mut self);
    /// What has not come to an end.
    fn left(&self) -> Vec<String>;
    /// Grows whenever somebody gets on.
    fn progress(&self) -> u64;
    /// Whether something was wrong: then the run is over.
    fn went_wrong(&self) -> bool;
    /// The world's time.
    fn now(&self) -> Time;
}

/// Runs a world. In the calm something must make progress within this virtual time, or all must have ended. Returns the
/// steps taken.
pub(crate) fn storm_and_calm(world: &mut impl Stormy, steps: u64, progress_within: Duration) -> u64 {
    let mut taken = 0;
    while taken < steps && !world.went_wrong() && world.step() {
        taken += 1;
    }
    world.calm_down();
    let limit = taken + CALM_STEPS_MAX;
    let (mut progress, mut since) = (0, world.now());
    while taken < limit && !world.went_wrong() && world.step() {
        taken += 1;
        if taken % LOOK_EVERY != 0 {
            continue;
        }
        let latest = world.progress();
        if latest != progress {
            (progress, since) = (latest, world.now());
        }
        if world.left().is_empty() || world.now().since(since) > progress_within {
            break;
        }
    }
    taken
}
