//! Sessions in the simulator, over many seeds.

use spillway_sim::session::canary::Canary;
use spillway_sim::session::run;

const STEPS: u64 = 10_000;

#[test]
fn no_byte_is_lost_repeated_reordered_or_altered_and_gone_is_true() {
    let (mut completed, mut gone, mut moves, mut faults) = (0, 0, 0, 0);
    for seed in 0..40 {
        let report = run(seed, STEPS, None);
        assert!(
            report.violations.is_empty(),
            "replay with: spillway sim session --seed {seed} --steps {STEPS}\n{report:#?}"
        );
        completed += report.completed;
        gone += report.gone;
        moves += report.moves;
        faults += report.faults;
    }
    println!("{completed} sessions completed, {gone} gone, {moves} moves, {faults} faults");
    assert!(completed > 300 && gone > 20 && moves > 300 && faults > 50, "neither idle nor deadly");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [3, 4] {
        assert_eq!(run(seed, STEPS, None), run(seed, STEPS, None));
    }
    assert_ne!(run(3, STEPS, None).trace_hash, run(4, STEPS, None).trace_hash);
}

#[test]
fn every_canary_is_caught() {
    for canary in Canary::ALL {
        let caught = (0..6).filter(|seed| !run(*seed, STEPS, Some(canary)).violations.is_empty()).count();
        assert!(caught >= 2, "{canary:?} was caught with {caught} of 6 seeds");
    }
}
