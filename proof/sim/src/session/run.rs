//! A run: a fault phase of `steps` steps, then a calm phase until every session has ended, and the report.

use std::time::Duration;

use serde::Serialize;

use super::check::{Check, Violation};
use super::planted_fault::PlantedFault;
use super::world::World;
use crate::phases::{PhasedWorld, run_both_phases};

/// The result of one seed.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Report {
    /// Seed that replays the run, with the same number of steps.
    pub seed: u64,
    /// Events handled in both phases.
    pub steps: u64,
    /// Virtual time, milliseconds.
    pub simulated_ms: u64,
    /// Hash of all events delivered to applications; equal seeds, steps and code give equal hashes.
    pub trace_hash: String,
    /// Sessions begun.
    pub sessions: usize,
    /// Sessions that ended in good order and complete.
    pub completed: u64,
    /// Sessions whose clients received *gone*, because the server had no such session.
    pub gone: u64,
    /// Resumptions on another carrier.
    pub moves: u64,
    /// Events delivered to applications.
    pub messages: u64,
    /// Bytes delivered in both directions; each was checked.
    pub delivered_bytes: u64,
    /// Faults injected.
    pub faults: u64,
    /// Replayed messages that were refused.
    pub copies_refused: u64,
    /// Replayed opening messages that arrived before their originals.
    #[serde(rename = "copies_taken")]
    pub copies_accepted: u64,
    /// Violations; empty if the code under test is right.
    pub violations: Vec<Violation>,
}

/// Limit of the virtual time without progress in the calm phase: longer than any timer.
const PROGRESS_WITHIN: Duration = Duration::from_secs(180);

/// Runs a world from a seed: a fault phase of `steps` steps, then a calm phase.
pub fn run(seed: u64, steps: u64, planted: Option<PlantedFault>) -> Report {
    run_without_check(seed, steps, planted, None)
}

/// Like [`run`], with the check `check_off` switched off.
pub fn run_without_check(
    seed: u64,
    steps: u64,
    planted: Option<PlantedFault>,
    check_off: Option<Check>,
) -> Report {
    let mut world = World::new(seed, planted, check_off);
    let steps_taken = run_both_phases(&mut world, steps, PROGRESS_WITHIN);
    world.finish();
    let checker = world.checker.borrow();
    Report {
        seed,
        steps: steps_taken,
        simulated_ms: world.now().as_nanos() / 1_000_000,
        trace_hash: format!("{:016x}", world.network.hash),
        sessions: checker.sessions(),
        completed: checker.completed,
        gone: checker.gone,
        moves: checker.moves,
        messages: world.network.events_delivered,
        delivered_bytes: checker.delivered,
        faults: world.faults,
        copies_refused: checker.copies_refused,
        copies_accepted: checker.copies_accepted,
        violations: checker.violations().to_vec(),
    }
}
