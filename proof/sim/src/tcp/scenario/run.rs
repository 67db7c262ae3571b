//! Runs of scripted moves, and their reports.

use std::time::Duration;

use serde::Serialize;
use spillway_handoff::MoveResult;

use super::case::{Case, Fault};
use super::script::{Outcome, Script};
use crate::phases::run_both_phases;
use crate::rng::Rng;
use crate::tcp::planted_fault::PlantedFault;
use crate::tcp::world::World;

/// Frames of the phase with moves, at most; the phase ends with the last move.
const PACKETS_MAX: u64 = 40_000;
/// Moves of a seed of a swarm.
const MOVES: usize = 12;
const PROGRESS_WITHIN: Duration = Duration::from_secs(600);

/// The result of a run.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct ScenarioReport {
    /// Seed that replays the run.
    pub seed: u64,
    /// Each move's case, or `no fault`, and its outcome.
    pub steps: Vec<(String, String)>,
    /// Frames that stacks sent.
    pub packets: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Connections begun, and those that ended complete.
    pub streams: usize,
    /// Connections that ended complete.
    pub completed: u64,
    /// Connections lost by design of the protocol, or with a server.
    pub lost: u64,
    /// Violations; empty if the code under test is right.
    pub violations: Vec<String>,
}

/// The moves of a run. Two hosts have three servers each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// One move with the fault of the case.
    Case(Case),
    /// Twelve moves with a planted fault and without any other, or without any.
    Twelve(Option<PlantedFault>),
    /// Twelve moves; the seed decides which faults strike in half of them.
    Swarm,
}

impl Moves {
    /// Each move's fault.
    fn cases(self, seed: u64) -> Vec<Option<Case>> {
        match self {
            Moves::Case(case) => vec![Some(case)],
            Moves::Twelve(_) => vec![None; MOVES],
            Moves::Swarm => {
                let mut rng = Rng::new(seed ^ 0x5eed_5c41);
                let all: Vec<Case> = Case::all().collect();
                (0..MOVES).map(|_| rng.chance(1, 2).then(|| rng.pick(&all))).collect()
            }
        }
    }

    fn planted(self) -> Option<PlantedFault> {
        match self {
            Moves::Twelve(planted) => planted,
            Moves::Case(_) | Moves::Swarm => None,
        }
    }
}

/// Runs the moves of a seed.
pub fn run(seed: u64, moves: Moves) -> ScenarioReport {
    run_world(seed, moves, None)
}

/// Like [`run`]; passes every frame, every datagram between servers and every drop to `on_line`, as lines of text.
pub fn run_with_trace(seed: u64, moves: Moves, on_line: impl FnMut(String) + 'static) -> ScenarioReport {
    run_world(seed, moves, Some(Box::new(on_line)))
}

fn run_world(seed: u64, moves: Moves, trace: Option<Box<dyn FnMut(String)>>) -> ScenarioReport {
    let cases = moves.cases(seed);
    let is_calm = cases.iter().flatten().all(|case| case.fault.is_of_message());
    let mut world = World::scripted(seed, Script::new(cases), moves.planted());
    world.trace = trace;
    run_both_phases(&mut world, PACKETS_MAX, PROGRESS_WITHIN);
    world.finish();
    let timeouts = world.hosts().iter().map(|host| host.rack.sum(|counters| counters.timeouts)).sum();
    let lost = world.lost();
    let script = world.script.as_ref();
    let steps: Vec<(String, String)> =
        script.map_or_else(Vec::new, |script| script.outcomes.iter().map(describe).collect());
    let oracle = world.oracle.borrow();
    let mut violations = oracle.violations().to_vec();
    if is_calm && timeouts > 0 {
        violations.push(format!(
            "{timeouts} retransmission timeouts, but no segment was lost: a request has waited because of a move"
        ));
    }
    if steps.is_empty() {
        violations.push("no connection has moved".to_owned());
    }
    violations.extend(script.and_then(|script| check_imports(&world, script)));
    ScenarioReport {
        seed,
        steps,
        packets: world.packets,
        timeouts,
        streams: oracle.streams(),
        completed: oracle.completed,
        lost: lost.by_silence + lost.by_restart + lost.in_doubt + lost.with_server,
        violations,
    }
}

/// Checks that connections have moved no more often than the script has requested: no server sends one on, or back, by
/// itself.
fn check_imports(world: &World, script: &Script) -> Option<String> {
    let mut moved = std::collections::BTreeMap::new();
    for flow in world.hosts().iter().flat_map(|host| &host.rack.directory.moved) {
        *moved.entry(*flow).or_insert(0_u64) += 1;
    }
    let too_often =
        moved.into_iter().find(|(flow, count)| script.requested.get(flow).is_none_or(|max| max < count));
    too_often.map(|(flow, count)| {
        let requested = script.requested.get(&flow).copied().unwrap_or_default();
        format!("{flow:?} bounces: it has moved {count} times, but {requested} moves were requested")
    })
}

fn describe(outcome: &Outcome) -> (String, String) {
    let name = outcome.case.map_or_else(|| "no fault".to_owned(), |case| case.to_string());
    let dies = outcome.case.map(|case| case.fault);
    let text = match (outcome.result, outcome.is_lost) {
        _ if outcome.case.is_some() && !outcome.has_struck => "the step was not reached",
        (Some(MoveResult::Moved), false) => "moved",
        (Some(MoveResult::Kept(_)), false) => "kept",
        (Some(MoveResult::Returned(_)), false) => "returned",
        (Some(MoveResult::LetGo), false) => "let go",
        (None, false) => "the source has no outcome",
        (_, true) if dies == Some(Fault::SourceDies) => "lost with the source",
        (_, true) if dies == Some(Fault::TargetDies) => "lost with the target",
        (_, true) => "lost",
    };
    (name, text.to_owned())
}
