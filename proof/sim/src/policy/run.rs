//! A run: the same load with relief and without it, and the report.

use serde::Serialize;
use spillway_policy::Override;

use super::checker::Violation;
use super::plan::Plan;
use super::planted_fault::PlantedFault;
use super::world::World;
use crate::rng::Rng;

/// The result of one seed.
#[derive(Clone, Debug, Default, Serialize, PartialEq)]
pub struct Report {
    /// Seed that replays the run.
    pub seed: u64,
    /// Course of the load.
    pub course: &'static str,
    /// Fault of the helpers.
    pub trouble: &'static str,
    /// Number of processes.
    pub processes: usize,
    /// Connections of all processes.
    pub connections: u32,
    /// Events handled.
    pub happened: u64,
    /// Hash of all orders; equal seeds and code give equal hashes.
    pub trace_hash: String,
    /// Requests that were due.
    pub requests: u64,
    /// Late requests.
    pub late: u64,
    /// Late requests without relief.
    pub late_without: u64,
    /// Moves of all connections.
    pub moves: u64,
    /// Largest number of moves of one connection within a minute.
    pub switches_max: u64,
    /// Time with p99 over the SLA, ms, in bins of 100 ms.
    pub over_sla_ms: u64,
    /// Time with p99 over the SLA without relief, ms.
    pub over_sla_ms_without: u64,
    /// Time from the beginning of the burst until relief, ms.
    pub relieved_ms: Option<u64>,
    /// Violations; empty if the policies are right.
    pub violations: Vec<Violation>,
}

/// Runs a world from a seed.
pub fn run(seed: u64, planted: Option<PlantedFault>) -> Report {
    run_world(seed, planted, false).0
}

/// Like [`run`]; also returns the log of decisions.
pub fn run_with_trace(seed: u64, planted: Option<PlantedFault>) -> (Report, Vec<String>) {
    run_world(seed, planted, true)
}

fn run_world(seed: u64, planted: Option<PlantedFault>, has_log: bool) -> (Report, Vec<String>) {
    let plan = Plan::draw(&mut Rng::new(seed));
    let mut without_relief = World::new(seed, plan.clone(), Override::Off, None);
    without_relief.run();
    let mut world = World::new(seed, plan, Override::Auto, planted);
    world.log = has_log.then(Vec::new);
    world.run();
    world.checker.finish(&world.plan, &without_relief.checker);
    let checker = &world.checker;
    let ms = |time: std::time::Duration| time.as_millis() as u64;
    let report = Report {
        seed,
        course: world.plan.course.name(),
        trouble: world.plan.trouble(),
        processes: world.plan.processes.len(),
        connections: world.plan.connections(),
        happened: world.events_handled,
        trace_hash: format!("{:016x}", world.hash),
        requests: checker.requests,
        late: checker.late,
        late_without: without_relief.checker.late,
        moves: checker.moves(),
        switches_max: checker.switches_max(),
        over_sla_ms: ms(checker.over_sla()),
        over_sla_ms_without: ms(without_relief.checker.over_sla()),
        relieved_ms: checker.relieved_after().map(ms).filter(|_| world.plan.course.name() == "burst"),
        violations: checker.violations().to_vec(),
    };
    (report, world.log.unwrap_or_default())
}
