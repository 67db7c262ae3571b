//! Relief policies in the simulator, over many seeds; and planted faults, which must be detected.

use spillway_sim::policy::books::Check;
use spillway_sim::policy::canary::Canary;
use spillway_sim::policy::{Report, run};
use spillway_sim::swarm;

/// Seeds of the swarm. `spillway-lab sim policy --swarm` runs more.
const SEEDS: u64 = 12;
/// A planted fault that no longer shows at its own seed, after a change of policies, shows within this many seeds.
const SEEDS_PER_CANARY: u64 = 40;

fn reports_of(seeds: u64, one: impl Fn(u64) -> Report + Sync) -> Vec<Report> {
    let mut reports = Vec::new();
    swarm(0..seeds, one, |report| reports.push(report));
    reports
}

#[test]
fn bursts_are_relieved_without_oscillation_and_nothing_gets_worse() {
    let reports = reports_of(SEEDS, |seed| run(seed, None));
    for report in &reports {
        assert!(
            report.violations.is_empty(),
            "replay with: spillway-lab sim policy --seed {} --decisions\n{report:#?}",
            report.seed
        );
    }
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let (late, without, moves) = (sum(|r| r.late), sum(|r| r.late_without), sum(|r| r.moves));
    println!("{late} requests late, {without} without relief, {moves} moves");
    assert!(late * 4 < without * 3 && moves > 1000, "relief reduces late requests");
}

/// Regression: after the loss of helpers, impatient clients kept the server so busy that moves took longer than the
/// order's timeout. Such a move counted as refused, and the connection returned to the server as soon as it had
/// arrived.
#[test]
fn moves_that_arrive_after_their_timeout_are_not_undone() {
    let report = run(540, None);
    assert!(report.violations.is_empty(), "{report:#?}");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    assert_eq!(run(1, None), run(1, None));
    assert_ne!(run(1, None).trace_hash, run(2, None).trace_hash);
}

/// Runs seeds until the fault shows to its check, and returns the seed.
fn caught(canary: Canary) -> u64 {
    for seed in [canary.shows_at()].into_iter().chain(0..SEEDS_PER_CANARY) {
        let report = run(seed, Some(canary));
        if report.violations.iter().any(|violation| violation.check == canary.seen_by()) {
            return seed;
        }
    }
    panic!("{canary:?} was not caught with any of {SEEDS_PER_CANARY} seeds");
}

#[test]
fn every_canary_is_caught_by_its_check() {
    for canary in Canary::ALL {
        println!("{canary:?} was caught with seed {}", caught(canary));
    }
    for check in Check::ALL {
        assert!(Canary::ALL.iter().any(|canary| canary.seen_by() == check), "a canary for {check:?}");
    }
}
