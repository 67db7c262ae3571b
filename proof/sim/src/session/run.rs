//! A run: a storm of so many steps, then calm until every session has ended, and what was found.

use std::time::Duration;

use serde::Serialize;

use super::canary::Canary;
use super::check::{Check, Violation};
use super::world::World;
use crate::storm::{Stormy, storm_and_calm};

/// What one seed led to.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Things that happened in all, those after the storm included.
    pub steps: u64,
    /// Virtual time, milliseconds.
    pub simulated_ms: u64,
    /// Of everything that was told to anybody. The same seed, steps and program give the same.
    pub trace_hash: String,
    /// Sessions.
    pub sessions: usize,
    /// Of those, ended in good order and complete.
    pub completed: u64,
    /// Of those, whose clients were told that no server knows them any more.
    pub gone: u64,
    /// Times that a session went on, on another carrier.
    pub moves: u64,
    /// Things that hosts' programs were told: bytes, connections, their ends.
    pub messages: u64,
    /// Bytes delivered, both ways, each checked.
    pub delivered_bytes: u64,
    /// Faults made.
    pub faults: u64,
    /// Times that something was said again on another carrier and refused,
    pub copies_refused: u64,
    /// and times that it overtook its original.
    pub copies_taken: u64,
    /// What was wrong. Nothing, one hopes.
    pub violations: Vec<Violation>,
}

/// After the storm something must make progress within this virtual time, or all must have ended: longer than any
/// timer.
const PROGRESS_WITHIN: Duration = Duration::from_secs(180);

/// Runs a world from a seed: `steps` of storm, then calm.
pub fn run(seed: u64, steps: u64, canary: Option<Canary>) -> Report {
    run_blindly(seed, steps, canary, None)
}

/// The same, where one thing is not looked at.
pub fn run_blindly(seed: u64, steps: u64, canary: Option<Canary>, blind: Option<Check>) -> Report {
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
        messages: world.network.told,
        delivered_bytes: books.delivered,
        faults: world.faults,
        copies_refused: books.copies_refused,
        copies_taken: books.copies_taken,
        violations: books.violations().to_vec(),
    }
}
