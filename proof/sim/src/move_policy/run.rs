//! A run of one policy, and its report.

use serde::Serialize;
use spillway_policy::migration::{MigrationSettings, MovePolicy, ProactiveSettings, ReactiveSettings};

use super::checker::Violation;
use super::plan::{Plan, Scenario};
use super::planted_fault::PlantedFault;
use super::world::World;
use crate::rng::Rng;

/// A policy of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyName {
    /// Connections stay where they are.
    None,
    /// [`MovePolicy::Reactive`] with its defaults.
    Reactive,
    /// [`MovePolicy::Proactive`] with its defaults.
    Proactive,
}

impl PolicyName {
    /// All policies.
    pub const ALL: [PolicyName; 3] = [PolicyName::None, PolicyName::Reactive, PolicyName::Proactive];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            PolicyName::None => "none",
            PolicyName::Reactive => "reactive",
            PolicyName::Proactive => "proactive",
        }
    }

    fn policy(self) -> Option<MovePolicy> {
        match self {
            PolicyName::None => None,
            PolicyName::Reactive => Some(MovePolicy::Reactive(ReactiveSettings::default())),
            PolicyName::Proactive => Some(MovePolicy::Proactive(ProactiveSettings::default())),
        }
    }
}

/// The load, the policy and the faults of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunSettings {
    /// The load.
    pub scenario: Scenario,
    /// The policy.
    pub policy: PolicyName,
    /// Limits that the policy meets often, and a load that changes often.
    pub has_tight_limits: bool,
    /// A planted fault.
    pub planted: Option<PlantedFault>,
}

/// The result of one seed with one policy.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Report {
    /// Seed that replays the run.
    pub seed: u64,
    /// The policy of the run.
    pub policy: PolicyName,
    /// The load of the run.
    pub scenario: Scenario,
    /// Number of servers.
    pub servers: usize,
    /// Requests that count.
    pub requests: u64,
    /// p99 of their latencies, µs.
    pub p99_us: f64,
    /// Moves that were decided and not refused.
    pub moves: u64,
    /// Moves that were refused.
    pub refused: u64,
    /// Hash of all moves; equal seeds and code give equal hashes.
    pub trace_hash: String,
    /// Violations; empty if the policy is within its limits.
    pub violations: Vec<Violation>,
}

/// Runs a seed.
pub fn run(seed: u64, settings: RunSettings) -> Report {
    run_world(seed, settings, false).0
}

/// Like [`run`]; also returns the log of decisions.
pub fn run_with_trace(seed: u64, settings: RunSettings) -> (Report, Vec<String>) {
    run_world(seed, settings, true)
}

fn run_world(seed: u64, settings: RunSettings, has_log: bool) -> (Report, Vec<String>) {
    // "moves" in ASCII: other simulations draw other numbers from the same seed.
    let mut rng = Rng::new(seed ^ 0x6d_6f76_6573);
    let plan = Plan::draw(&mut rng, settings.scenario, settings.has_tight_limits);
    let servers = plan.servers;
    let limits = plan.limits;
    let migration = settings.policy.policy().map(|policy| MigrationSettings {
        policy,
        limits,
        ..MigrationSettings::default()
    });
    let mut world = World::new(rng, plan, migration, settings.planted);
    world.log = has_log.then(Vec::new);
    world.run();
    let requests = world.checker.requests();
    let (violations, p99_us) = world.checker.finish(0.99);
    let report = Report {
        seed,
        policy: settings.policy,
        scenario: settings.scenario,
        servers,
        requests,
        p99_us,
        moves: world.checker.moves,
        refused: world.checker.refused,
        trace_hash: format!("{:016x}", world.hash),
        violations,
    };
    (report, world.log.unwrap_or_default())
}
