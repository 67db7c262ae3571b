//! A run: a storm of so many frames, then calm until every connection has ended, and what was found.

use std::time::Duration;

use serde::Serialize;

use super::canary::Canary;
use super::world::World;
use crate::storm::{Stormy, storm_and_calm};

/// What one seed led to.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Frames that stacks sent, those after the storm included.
    pub packets: u64,
    /// Of those, lost on the way, for whatever reason.
    pub lost: u64,
    /// Frames of peers that keep no rules, floods, noise and forged ones.
    pub rogue_frames: u64,
    /// Virtual time, milliseconds.
    pub simulated_ms: u64,
    /// Of every frame and when it was sent. The same seed, number of frames and program give the same.
    pub trace_hash: String,
    /// Connections, each counted once.
    pub streams: usize,
    /// Of those, ended in good order and complete.
    pub completed: u64,
    /// Of those, broken by a fault or by one of the two ends.
    pub broken: u64,
    /// Bytes delivered, both ways, each checked.
    pub delivered_bytes: u64,
    /// Of helper scenes: acknowledgements to clients, each compared with what the server had.
    pub acknowledgements: u64,
    /// Faults made.
    pub faults: u64,
    /// Damaged frames, all of them seen by a checksum.
    pub damaged: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Connections that moved to another stack, each time counted.
    pub moves: u64,
    /// The most connections of one host.
    pub connections_max: usize,
    /// What was wrong. Nothing, one hopes.
    pub violations: Vec<String>,
    /// Where something was wrong: the last segments that stacks have dropped before, and why, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<String>,
}

/// After the storm something must make progress within this virtual time, or all must have ended: longer than any timer.
const PROGRESS_WITHIN: Duration = Duration::from_secs(600);

/// Runs a world from a seed: about `packets` frames of storm, then calm.
pub fn run(seed: u64, packets: u64, canary: Option<Canary>) -> Report {
    of_world(seed, packets, World::new(seed, canary))
}

/// The same, and `tell` is told of every frame, and of everything that a stack drops.
pub fn run_loudly(
    seed: u64,
    packets: u64,
    canary: Option<Canary>,
    tell: impl FnMut(String) + 'static,
) -> Report {
    let mut world = World::new(seed, canary);
    world.trace = Some(Box::new(tell));
    of_world(seed, packets, world)
}

fn of_world(seed: u64, packets: u64, mut world: World) -> Report {
    storm_and_calm(&mut world, packets, PROGRESS_WITHIN);
    world.finish();
    let sum = |of: fn(&spillway_tcp::Counters) -> u64| -> u64 {
        world.hosts().iter().map(|host| host.rack.sum(of)).sum()
    };
    let oracle = world.oracle.borrow();
    Report {
        seed,
        packets: world.packets,
        lost: world.paths().iter().map(|path| path.lost).sum(),
        rogue_frames: world.rogue_frames,
        simulated_ms: world.now().as_nanos() / 1_000_000,
        trace_hash: format!("{:016x}", world.hash),
        streams: oracle.streams(),
        completed: oracle.completed,
        broken: oracle.broken,
        delivered_bytes: oracle.delivered,
        acknowledgements: 0,
        faults: world.faults,
        damaged: sum(|counters| counters.frames_malformed),
        timeouts: sum(|counters| counters.timeouts),
        moves: world.hosts().iter().map(|host| host.rack.moves.made).sum(),
        connections_max: world.connections_max,
        violations: oracle.violations().to_vec(),
        dropped: if oracle.violations().is_empty() { Vec::new() } else { world.last_drops.lines() },
    }
}
