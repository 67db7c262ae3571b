//! Helper scenes on the user-level stack: helpers die, and nothing that was acknowledged to a client is lost.

use spillway_sim::swarm;
use spillway_sim::tcp::{Report, scene};

const SEEDS: u64 = 40;
const PACKETS: u64 = 10_000;

#[test]
fn what_a_dead_helper_has_acknowledged_is_with_the_server() {
    let mut reports: Vec<Report> = Vec::new();
    swarm(0..SEEDS, |seed| scene::run(seed, PACKETS, false), |report| reports.push(report));
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
        "{acknowledgements} acknowledgements, {deaths} deaths, {completed} streams whole, {broken} broken"
    );
    assert!(acknowledgements > 10_000 && deaths > 500 && completed > 2_000 && broken > 500, "too few events");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    assert_eq!(scene::run(3, 3_000, false), scene::run(3, 3_000, false));
}

#[test]
fn a_helper_without_gates_is_caught() {
    let is_caught = |seed: &u64| {
        let report = scene::run(*seed, PACKETS, true);
        report.violations.iter().any(|what| what.contains("acknowledged to the client"))
    };
    let seed = (0..10).find(is_caught);
    println!("caught with seed {seed:?}");
    assert!(seed.is_some(), "helpers without gates were not caught");
}
