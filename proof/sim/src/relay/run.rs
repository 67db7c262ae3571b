//! A run: a storm of so many steps, then calm until everything has ended, and what was found.

use std::time::Duration;

use serde::Serialize;

use crate::relay::canary::Canary;
use crate::relay::world::World;
use crate::storm::{Stormy, storm_and_calm};

/// What one seed led to.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Things that happened in all, those after the storm included.
    pub steps: u64,
    /// Virtual time, milliseconds.
    pub simulated_ms: u64,
    /// Of everything that was told to anybody. The same seed, steps and program give the same.
    pub trace_hash: String,
    /// Virtual connections.
    pub streams: usize,
    /// Of those, ended in good order and complete.
    pub completed: u64,
    /// Of those, broken by a fault or by one of the two ends.
    pub broken: u64,
    /// Bytes delivered, both ways, each checked.
    pub delivered_bytes: u64,
    /// ReleaseSchedule at replies that the server keeps until a client's TCP has acknowledged them.
    pub kept_looks: u64,
    /// Clients that helpers closed because memory was short.
    pub closed_for_memory: u64,
    /// Segments of links that were altered on the path.
    pub altered: u64,
    /// Faults made.
    pub faults: u64,
    /// Batches that helpers sent.
    pub batches: u64,
    /// Data messages in them.
    pub messages: u64,
    /// What was wrong. Nothing, one hopes.
    pub violations: Vec<String>,
}

/// After the storm something must make progress within this virtual time: longer than any timer.
const PROGRESS_WITHIN: Duration = Duration::from_secs(30);

/// Runs a world from a seed: `steps` of storm, then calm.
pub fn run(seed: u64, steps: u64, canary: Option<Canary>) -> Report {
    let mut world = World::new(seed, canary);
    let taken = storm_and_calm(&mut world, steps, PROGRESS_WITHIN);
    let (batches, messages) = world.finish();
    let oracle = world.oracle.borrow();
    Report {
        seed,
        steps: taken,
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
