//! A run: the same course with help and without, and what was found.

use serde::Serialize;
use spillway_policy::Override;

use super::books::Violation;
use super::canary::Canary;
use super::plan::Plan;
use super::world::World;
use crate::rng::Rng;

/// What one seed led to.
#[derive(Clone, Debug, Default, Serialize, PartialEq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How the load went.
    pub course: &'static str,
    /// What was wrong with the helpers.
    pub trouble: &'static str,
    /// Processes.
    pub processes: usize,
    /// Their connections.
    pub connections: u32,
    /// Things that happened.
    pub happened: u64,
    /// Of all orders. The same seed and program give the same.
    pub trace_hash: String,
    /// Requests.
    pub requests: u64,
    /// Of those, late.
    pub late: u64,
    /// And without help.
    pub late_without: u64,
    /// Moves of all connections.
    pub moves: u64,
    /// The most of one connection within a minute.
    pub switches_max: u64,
    /// Time with p99 over the SLA, ms, by bins of 100 ms.
    pub over_sla_ms: u64,
    /// And without help.
    pub over_sla_ms_without: u64,
    /// A burst was relieved after so long, ms.
    pub relieved_ms: Option<u64>,
    /// What was wrong. Nothing, one hopes.
    pub violations: Vec<Violation>,
}

/// Runs a world from a seed.
pub fn run(seed: u64, canary: Option<Canary>) -> Report {
    run_world(seed, canary, false).0
}

/// The same, and what was decided.
pub fn run_loudly(seed: u64, canary: Option<Canary>) -> (Report, Vec<String>) {
    run_world(seed, canary, true)
}

fn run_world(seed: u64, canary: Option<Canary>, is_loud: bool) -> (Report, Vec<String>) {
    let plan = Plan::draw(&mut Rng::new(seed));
    let mut never = World::new(seed, plan.clone(), Override::Off, None);
    never.run();
    let mut world = World::new(seed, plan, Override::Auto, canary);
    world.log = is_loud.then(Vec::new);
    world.run();
    world.books.finish(&world.plan, &never.books);
    let books = &world.books;
    let ms = |time: std::time::Duration| time.as_millis() as u64;
    let report = Report {
        seed,
        course: world.plan.course.name(),
        trouble: world.plan.trouble(),
        processes: world.plan.processes.len(),
        connections: world.plan.connections(),
        happened: world.happened,
        trace_hash: format!("{:016x}", world.hash),
        requests: books.requests,
        late: books.late,
        late_without: never.books.late,
        moves: books.moves(),
        switches_max: books.switches_max(),
        over_sla_ms: ms(books.over_sla()),
        over_sla_ms_without: ms(never.books.over_sla()),
        relieved_ms: books.relieved_after().map(ms).filter(|_| world.plan.course.name() == "burst"),
        violations: books.violations().to_vec(),
    };
    (report, world.log.unwrap_or_default())
}
