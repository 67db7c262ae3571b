//! A run: a storm of `steps` steps, then calm until every session has ended, and the report.

use std::time::Duration;

use serde::Serialize;

use super::canary::Canary;
use super::check::{Check, Violation};
use super::world::World;
use crate::storm::{Stormy, storm_and_calm};

/// The result of one seed.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Report {
    /// Replays the run, with the same number of steps.
    pub seed: u64,
    /// Events handled, in the storm and after it.
    pub steps: u64,
    /// Virtual time, milliseconds.
    pub simulated_ms: u64,
    /// Over all events delivered to hosts' programs; the same seed, steps and program give the same hash.
    pub trace_hash: String,
    /// Sessions begun.
    pub sessions: usize,
    /// Sessions that ended in good order and complete.
    pub completed: u64,
    /// Sessions whose clients learned that no server knows them.
    pub gone: u64,
    /// Resumptions on another carrier.
    pub moves: u64,
    /// Events delivered to hosts' programs.
    pub messages: u64,
    /// Bytes delivered, both ways, each checked.
    pub delivered_bytes: u64,
    /// Faults injected.
    pub faults: u64,
    /// Replayed messages that were refused.
    pub copies_refused: u64,
    /// Replayed opening messages that arrived before their originals.
    pub copies_taken: u64,
    /// Violations; empty if the code under test is right.
    pub violations: Vec<Violation>,
}

/// Bound of the virtual time without progress after the storm: longer than any timer.
const PROGRESS_WITHIN: Duration = Duration::from_secs(180);

/// Runs a world from a seed: `steps` of storm, then calm.
pub fn run(seed: u64, steps: u64, canary: Option<Canary>) -> Report {
    run_without_check(seed, steps, canary, None)
}

/// Like [`run`], with the check `blind` off.
pub fn run_without_check(seed: u64, steps: u64, canary: Option<Canary>, blind: Option<Check>) -> Report {
    let mut world = World::new(seed, canary, blind);
    let taken = storm_and_calm(&mut world, steps, PROGRESS_WITHIN);
    world.finish();
    let books = world.books.borrow();
    Report {
        seed,
        steps: taken,
        simulated_ms: world.now().as_nanos() / 1_000_000,
        trace_hash: format!("{:016x}", world.network.hash),
        sessions: books.sessions(),
        completed: books.completed,
        gone: books.gone,
        moves: books.moves,
        messages: world.network.events_delivered,
        delivered_bytes: books.delivered,
        faults: world.faults,
        copies_refused: books.copies_refused,
        copies_taken: books.copies_taken,
        violations: books.violations().to_vec(),
    }
}
