//! Helper scenes on the user-level stack: when helpers crash, no acknowledged byte of a client is lost.

use spillway_sim::run_seeds;
use spillway_sim::tcp::{Report, scene};

const SEEDS: u64 = 40;
const PACKETS: u64 = 10_000;

#[test]
fn bytes_acknowledged_by_a_dead_helper_are_at_the_server() {
    let mut reports: Vec<Report> = Vec::new();
    run_seeds(0..SEEDS, |seed| scene::run(seed, PACKETS, false), |report| reports.push(report));
    for report in &reports {
        assert!(
            report.violations.is_empty(),
            "replay with: spillway-lab sim tcp --helpers --seed {} --packets {PACKETS}\n{report:#?}",
            report.seed
        );
    }
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let (acknowledgements, deaths) = (sum(|r| r.acknowledgements), sum(|r| r.faults));
    let (completed, broken) = (sum(|r| r.completed), sum(|r| r.broken));
    println!(
        "{acknowledgements} acknowledgements, {deaths} deaths, {completed} streams complete, {broken} broken"
    );
    assert!(acknowledgements > 10_000 && deaths > 500 && completed > 2_000 && broken > 500, "too few events");
}

#[test]
fn equal_seeds_give_equal_traces() {
    assert_eq!(scene::run(3, 3_000, false), scene::run(3, 3_000, false));
}

#[test]
fn helper_without_gates_is_detected() {
    let is_detected = |seed: &u64| {
        let report = scene::run(*seed, PACKETS, true);
        report.violations.iter().any(|what| what.contains("acknowledged to the client"))
    };
    let seed = (0..10).find(is_detected);
    println!("detected with seed {seed:?}");
    assert!(seed.is_some(), "helpers without gates were not detected with any of 10 seeds");
}
