//! Helper scenes on the stack: plain clients, helpers with gates, and a server, each on its own stack. Helpers die
//! and restart without state; what was acknowledged to a client must be with the server (PostMan §4.2).

mod node;
mod world;

use std::time::Duration;

use super::run::Report;
use crate::storm::{Stormy, storm_and_calm};
use world::World;

/// Bound of the virtual time without progress after the storm: longer than any timer.
const PROGRESS_WITHIN: Duration = Duration::from_secs(600);

/// Runs a scene from a seed: about `packets` frames of storm, then calm. `is_hasty`, a canary: helpers without gates
/// acknowledge before the server does.
pub fn run(seed: u64, packets: u64, is_hasty: bool) -> Report {
    let mut world = World::new(seed, is_hasty);
    storm_and_calm(&mut world, packets, PROGRESS_WITHIN);
    world.finish();
    let oracle = world.oracle.borrow();
    Report {
        seed,
        packets: world.packets,
        lost: world.lost(),
        simulated_ms: world.now().as_nanos() / 1_000_000,
        trace_hash: format!("{:016x}", world.hash),
        streams: oracle.streams(),
        completed: oracle.completed,
        broken: oracle.broken,
        delivered_bytes: oracle.delivered,
        acknowledgements: oracle.acknowledged_looks,
        faults: world.crashes,
        timeouts: world.timeouts,
        connections_max: world.connections_max,
        violations: oracle.violations().to_vec(),
        ..Report::default()
    }
}
