//! Relay and server link in the simulator, over many seeds. Planted faults must be detected.

use spillway_sim::relay::planted_fault::PlantedFault;
use spillway_sim::relay::run;

const STEPS: u64 = 10_000;

#[test]
fn no_byte_is_lost_repeated_reordered_or_altered() {
    let mut altered = 0;
    let (mut completed, mut broken, mut faults, mut kept_checks, mut closed_for_memory) = (0, 0, 0, 0, 0);
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
        kept_checks += report.kept_looks;
        closed_for_memory += report.closed_for_memory;
    }
    println!(
        "{completed} streams completed, {broken} broken by {faults} faults; {kept_checks} checks of kept replies"
    );
    assert!(altered > 20, "too few segments were altered: {altered}");
    assert!(kept_checks > 300, "too few checks of kept replies: {kept_checks}");
    assert!(closed_for_memory > 3, "too few clients were closed for memory: {closed_for_memory}");
    assert!(
        completed > 300 && broken > 50 && faults > 20,
        "too few streams completed or broken, or too few faults"
    );
}

#[test]
fn equal_seeds_give_equal_traces() {
    for seed in [3, 4] {
        assert_eq!(run(seed, STEPS, None), run(seed, STEPS, None));
    }
    assert_ne!(run(3, STEPS, None).trace_hash, run(4, STEPS, None).trace_hash);
}

#[test]
fn closing_an_idle_client_for_memory_is_detected() {
    // Only some worlds have an idle client when the memory is short.
    let is_detected = |seed| {
        let violations = run(seed, STEPS, Some(PlantedFault::CloseIdle)).violations;
        violations.iter().any(|what| what.contains("although it held nothing"))
    };
    assert!((0..32).any(is_detected), "the fault should be detected with one of 32 seeds");
}

/// Steps until a fault is detected. Unread answers exceed their bound only after some time.
fn steps_of(planted: PlantedFault) -> u64 {
    if planted == PlantedFault::ReadFlooders { 60_000 } else { STEPS }
}

#[test]
fn altered_bytes_on_unencrypted_links_are_detected() {
    let is_detected = |seed| {
        let violations = run(seed, STEPS, Some(PlantedFault::UnsealedLinks)).violations;
        violations.iter().any(|what| what.contains("wrong byte at"))
    };
    assert!((0..32).any(is_detected), "the fault should be detected with one of 32 seeds");
}

#[test]
fn every_planted_fault_is_detected() {
    // Only some worlds have clients that the fault can affect.
    let is_detected = |planted, seed| !run(seed, steps_of(planted), Some(planted)).violations.is_empty();
    for planted in PlantedFault::ALL {
        let seed = (0..8).find(|seed| is_detected(planted, *seed));
        assert!(seed.is_some(), "{planted:?} was not detected with any of 8 seeds");
    }
}
