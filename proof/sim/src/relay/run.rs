//! A run: a fault phase of `steps` steps, then a calm phase until everything has ended, and the report.

use std::time::Duration;

use serde::Serialize;

use crate::phases::{PhasedWorld, run_both_phases};
use crate::relay::planted_fault::PlantedFault;
use crate::relay::world::World;

/// The result of one seed.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Report {
    /// Seed that replays the run, with the same number of steps.
    pub seed: u64,
    /// Events handled in both phases.
    pub steps: u64,
    /// Virtual time, milliseconds.
    pub simulated_ms: u64,
    /// Hash of all events delivered to applications; equal seeds, steps and code give equal hashes.
    pub trace_hash: String,
    /// Virtual connections begun.
    pub streams: usize,
    /// Virtual connections that ended in good order and complete.
    pub completed: u64,
    /// Virtual connections that a fault or one of their ends broke.
    pub broken: u64,
    /// Bytes delivered in both directions; each was checked.
    pub delivered_bytes: u64,
    /// Number of checks of the replies that the server keeps until a client's TCP acknowledges them.
    pub kept_looks: u64,
    /// Clients that helpers closed because memory was short.
    pub closed_for_memory: u64,
    /// Segments of links that an attacker on the path altered.
    pub altered: u64,
    /// Faults injected.
    pub faults: u64,
    /// Batches that helpers sent.
    pub batches: u64,
    /// Data messages in these batches.
    pub messages: u64,
    /// Violations; empty if the code under test is right.
    pub violations: Vec<String>,
}

/// Limit of the virtual time without progress in the calm phase: longer than any timer.
const PROGRESS_WITHIN: Duration = Duration::from_secs(30);

/// Runs a world from a seed: a fault phase of `steps` steps, then a calm phase.
pub fn run(seed: u64, steps: u64, planted: Option<PlantedFault>) -> Report {
    let mut world = World::new(seed, planted);
    let steps_taken = run_both_phases(&mut world, steps, PROGRESS_WITHIN);
    let (batches, messages) = world.finish();
    let oracle = world.oracle.borrow();
    Report {
        seed,
        steps: steps_taken,
        simulated_ms: world.now().as_nanos() / 1_000_000,
        trace_hash: format!("{:016x}", world.network.hash),
        streams: oracle.streams(),
        completed: oracle.completed,
        broken: oracle.broken,
        delivered_bytes: oracle.delivered,
        kept_looks: oracle.kept_looks,
        closed_for_memory: oracle.closed_for_memory,
        altered: world.network.alterer.as_ref().map_or(0, |alterer| alterer.altered),
        faults: world.faults,
        batches,
        messages,
        violations: oracle.violations().to_vec(),
    }
}
