//! A run: a fault phase of `packets` frames, then a calm phase until every connection has ended, and the report.

use std::time::Duration;

use serde::Serialize;

use super::frames::Family;
use super::moves::Moves;
use super::requests::RequestCounts;
use super::world::World;
use super::worlds::Worlds;
use crate::phases::{PhasedWorld, run_both_phases};

/// The result of one seed.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Report {
    /// Seed that replays the run, with the same number of frames.
    pub seed: u64,
    /// Whether all hosts have IPv6 addresses.
    pub is_ipv6: bool,
    /// Frames that stacks sent in both phases.
    pub packets: u64,
    /// Frames lost on their paths, for any reason.
    pub lost: u64,
    /// Frames of the rogue host: of puppets, floods, noise, and forged segments.
    pub rogue_frames: u64,
    /// Virtual time, milliseconds.
    pub simulated_ms: u64,
    /// Hash of every frame and its send time; equal seeds, numbers of frames and code give equal hashes.
    pub trace_hash: String,
    /// Connections begun.
    pub streams: usize,
    /// Connections that ended in good order and complete.
    pub completed: u64,
    /// Connections that a fault or one of their ends broke.
    pub broken: u64,
    /// Bytes delivered in both directions; each was checked.
    pub delivered_bytes: u64,
    /// Acknowledgements to clients in helper scenes, each compared with the bytes that the server had received.
    pub acknowledgements: u64,
    /// Faults injected.
    pub faults: u64,
    /// Frames that stacks counted as malformed: damaged ones, and noise of rogue hosts.
    pub damaged: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Moves of connections to another server, through the switch.
    pub moves: u64,
    /// Moves that failed after the export: the connection came back.
    pub moves_returned: u64,
    /// Connections that were exported and imported in place, between two frames.
    pub moves_in_place: u64,
    /// Arrivals of connections with a request that the server is to serve.
    pub requests_handed_off: u64,
    /// Requests of which their origin has learned from another server that they were served.
    pub requests_served: u64,
    /// Connections that have returned with their requests to the origin.
    pub requests_returned: u64,
    /// Requests that have stayed, because their move has failed or was refused.
    pub requests_stayed: u64,
    /// Requests whose connections have ended at another server.
    pub requests_abandoned: u64,
    /// Requests of which their origin cannot know how they ended.
    pub requests_unknown: u64,
    /// Control messages that servers sent to the switch.
    pub control_messages: u64,
    /// Segments of servers that did not own the flow, which the switch dropped.
    pub not_owner: u64,
    /// Flows that their owners took back after the switch had lost its entries.
    pub reclaimed: u64,
    /// Connections lost because the switch did not hear their owner for too long.
    pub lost_by_silence: u64,
    /// Connections lost because the switch had lost its entries.
    pub lost_by_restart: u64,
    /// Connections lost by a move whose outcome no entry confirmed.
    pub lost_in_doubt: u64,
    /// Connections lost with a server that restarted.
    pub lost_with_server: u64,
    /// Restarts of servers.
    pub server_restarts: u64,
    /// Flows that their owners held without *prepare*.
    pub holds: u64,
    /// Answers to *list* that were compared with the switch's table.
    pub lists: u64,
    /// Maximum number of connections of one host.
    pub connections_max: usize,
    /// Violations; empty if the code under test is right.
    pub violations: Vec<String>,
    /// After a violation: the last segments that stacks dropped before it, with the reasons, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<String>,
}

/// Limit of the virtual time without progress in the calm phase: longer than any timer.
const PROGRESS_WITHIN: Duration = Duration::from_secs(600);

/// Runs a world from a seed: a fault phase of about `packets` frames, then a calm phase.
pub fn run(seed: u64, packets: u64, worlds: Worlds) -> Report {
    run_world(seed, packets, World::new(seed, worlds))
}

/// Like [`run`]; passes every frame and every drop to `on_line`, as lines of text.
pub fn run_with_trace(
    seed: u64,
    packets: u64,
    worlds: Worlds,
    on_line: impl FnMut(String) + 'static,
) -> Report {
    let mut world = World::new(seed, worlds);
    world.trace = Some(Box::new(on_line));
    run_world(seed, packets, world)
}

fn run_world(seed: u64, packets: u64, mut world: World) -> Report {
    run_both_phases(&mut world, packets, PROGRESS_WITHIN);
    world.finish();
    let sum = |of: fn(&spillway_tcp::Counters) -> u64| -> u64 {
        world.hosts().iter().map(|host| host.rack.sum(of)).sum()
    };
    let of_moves = |of: fn(&Moves) -> u64| -> u64 {
        world.hosts().iter().map(|host| of(&host.rack.directory.moves)).sum()
    };
    let of_requests = |of: fn(&RequestCounts) -> u64| -> u64 {
        world.hosts().iter().map(|host| of(&host.rack.directory.requests.counts)).sum()
    };
    let lost = world.lost();
    let oracle = world.oracle.borrow();
    Report {
        seed,
        is_ipv6: world.plan.family == Family::V6,
        packets: world.packets,
        lost: world.paths().map(|path| path.lost).sum(),
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
        moves: of_moves(|moves| moves.made),
        moves_returned: of_moves(|moves| moves.returned),
        moves_in_place: of_moves(|moves| moves.in_place),
        requests_handed_off: of_requests(|counts| counts.handed_off),
        requests_served: of_requests(|counts| counts.served),
        requests_returned: of_requests(|counts| counts.returned),
        requests_stayed: of_requests(|counts| counts.stayed),
        requests_abandoned: of_requests(|counts| counts.abandoned),
        requests_unknown: of_requests(|counts| counts.unknown),
        control_messages: world.control_messages,
        not_owner: world.not_owner(),
        reclaimed: world.hosts().iter().map(|host| host.rack.reclaimed()).sum(),
        lost_by_silence: lost.by_silence,
        lost_by_restart: lost.by_restart,
        lost_in_doubt: lost.in_doubt,
        lost_with_server: lost.with_server,
        server_restarts: world.server_restarts,
        holds: world.holds,
        lists: world.lists,
        connections_max: world.connections_max,
        violations: oracle.violations().to_vec(),
        dropped: if oracle.violations().is_empty() { Vec::new() } else { world.last_drops.lines() },
    }
}
