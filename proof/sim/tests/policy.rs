//! Relief policies in the simulator, over many seeds; and planted faults, which must be detected.

use spillway_sim::policy::checker::Check;
use spillway_sim::policy::planted_fault::PlantedFault;
use spillway_sim::policy::{Report, run};
use spillway_sim::run_seeds;

/// Number of seeds. `spillway-lab sim policy --swarm` runs more.
const SEEDS: u64 = 12;
/// Number of seeds to try if a planted fault is not detected with `PlantedFault::seed`, after a change of policies.
const SEEDS_PER_FAULT: u64 = 40;

fn reports_of(seeds: u64, run_one: impl Fn(u64) -> Report + Sync) -> Vec<Report> {
    let mut reports = Vec::new();
    run_seeds(0..seeds, run_one, |report| reports.push(report));
    reports
}

#[test]
fn bursts_are_relieved_without_oscillation_or_harm() {
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
    assert!(
        late * 4 < without * 3 && moves > 1000,
        "relief should avoid a quarter of the late requests, with over 1000 moves"
    );
}

/// Regression (seed 540): after the loss of helpers, impatient clients kept the server so busy that moves
/// took longer than the order's timeout. Such moves counted as refused, and were undone at their end.
#[test]
fn moves_that_complete_after_the_order_timeout_are_not_undone() {
    let report = run(540, None);
    assert!(report.violations.is_empty(), "{report:#?}");
}

#[test]
fn equal_seeds_give_equal_traces() {
    assert_eq!(run(1, None), run(1, None));
    assert_ne!(run(1, None).trace_hash, run(2, None).trace_hash);
}

/// Returns the first seed with which the fault's check detects the fault.
fn detecting_seed(planted: PlantedFault) -> u64 {
    for seed in [planted.seed()].into_iter().chain(0..SEEDS_PER_FAULT) {
        let report = run(seed, Some(planted));
        if report.violations.iter().any(|violation| violation.check == planted.detecting_check()) {
            return seed;
        }
    }
    panic!("{planted:?} was not detected with any of {SEEDS_PER_FAULT} seeds");
}

#[test]
fn every_planted_fault_is_detected_by_its_check() {
    for planted in PlantedFault::ALL {
        println!("{planted:?} was detected with seed {}", detecting_seed(planted));
    }
    for check in Check::ALL {
        assert!(
            PlantedFault::ALL.iter().any(|planted| planted.detecting_check() == check),
            "{check:?} should detect at least one planted fault"
        );
    }
}
