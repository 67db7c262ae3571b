//! Helper scenes: plain clients, helpers with gates, and a server, each on its own stack. Helpers crash and
//! lose their state; the server must have all bytes that were acknowledged to a client (PostMan §4.2).

mod node;
mod world;

use std::time::Duration;

use super::run::Report;
use crate::phases::{PhasedWorld, run_both_phases};
use world::World;

/// Limit of the virtual time without progress in the calm phase: longer than any timer.
const PROGRESS_WITHIN: Duration = Duration::from_secs(600);

/// Runs a scene from a seed: a fault phase of about `packets` frames, then a calm phase. `is_hasty` plants a
/// fault: helpers have no gates, so they acknowledge before the server does.
pub fn run(seed: u64, packets: u64, is_hasty: bool) -> Report {
    let mut world = World::new(seed, is_hasty);
    run_both_phases(&mut world, packets, PROGRESS_WITHIN);
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
