//! Relay and server link in the simulator, over many seeds; and planted faults, which must be detected.

use spillway_sim::relay::canary::Canary;
use spillway_sim::relay::run;

const STEPS: u64 = 10_000;

#[test]
fn no_byte_is_lost_repeated_reordered_or_altered() {
    let mut altered = 0;
    let (mut completed, mut broken, mut faults, mut looks, mut closed) = (0, 0, 0, 0, 0);
    for seed in 0..40 {
        let report = run(seed, STEPS, None);
        assert!(
            report.violations.is_empty(),
            "replay with: spillway-lab sim relay --seed {seed} --steps {STEPS}\n{report:#?}"
        );
        completed += report.completed;
        broken += report.broken;
        faults += report.faults;
        altered += report.altered;
        looks += report.kept_looks;
        closed += report.closed_for_memory;
    }
    println!(
        "{completed} streams completed, {broken} broken by {faults} faults; {looks} checks of kept replies"
    );
    assert!(altered > 20, "too few segments were altered: {altered}");
    assert!(looks > 300, "too few checks of kept replies: {looks}");
    assert!(closed > 3, "too few clients were closed for memory: {closed}");
    assert!(completed > 300 && broken > 50 && faults > 20, "the storms are neither idle nor deadly");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [3, 4] {
        assert_eq!(run(seed, STEPS, None), run(seed, STEPS, None));
    }
    assert_ne!(run(3, STEPS, None).trace_hash, run(4, STEPS, None).trace_hash);
}

#[test]
fn the_close_of_an_idle_client_for_memory_is_detected() {
    // Not every world has an idle client at the right time.
    let is_seen = |seed| {
        let violations = run(seed, STEPS, Some(Canary::CloseIdle)).violations;
        violations.iter().any(|what| what.contains("although it held nothing"))
    };
    assert!((0..32).any(is_seen));
}

/// Unread answers need time to exceed their bound.
fn steps_of(canary: Canary) -> u64 {
    if canary == Canary::ReadFlooders { 60_000 } else { STEPS }
}

#[test]
fn wrong_bytes_are_seen_where_links_have_no_records() {
    let is_seen = |seed| {
        let violations = run(seed, STEPS, Some(Canary::UnsealedLinks)).violations;
        violations.iter().any(|what| what.contains("wrong byte at"))
    };
    assert!((0..32).any(is_seen));
}

#[test]
fn every_canary_is_caught() {
    // Not every world has clients that the fault can hit.
    let caught = |canary, seed| !run(seed, steps_of(canary), Some(canary)).violations.is_empty();
    for canary in Canary::ALL {
        let seed = (0..8).find(|seed| caught(canary, *seed));
        assert!(seed.is_some(), "{canary:?} was not caught with any of 8 seeds");
    }
}
