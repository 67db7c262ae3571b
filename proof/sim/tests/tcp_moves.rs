//! Moves of connections, step by step: a fault at each step, by name. Planted faults must be detected.

use spillway_sim::run_seeds;
use spillway_sim::tcp::planted_fault::PlantedFault;
use spillway_sim::tcp::scenario::case::{Case, Fault};
use spillway_sim::tcp::scenario::{ScenarioReport, run_case, run_planted, run_swarm};

/// Seeds of the test with random faults; `spillway-lab sim moves --swarm` runs other seeds.
const SWARM_SEEDS: u64 = 12;
/// At least one of these seeds detects each planted fault. Without a fault, the worlds of these seeds have no retransmission
/// timeout.
const SEEDS: [u64; 4] = [2, 3, 5, 8];

fn outcome_of(report: &ScenarioReport) -> &str {
    assert!(report.violations.is_empty(), "{report:#?}");
    assert_eq!(report.steps.len(), 1, "{report:?}");
    &report.steps[0].1
}

#[test]
fn a_fault_at_any_step_leaves_one_owner_and_a_stream_without_wrong_bytes() {
    let cases: Vec<Case> = Case::all().collect();
    let mut reports = Vec::new();
    let run = |index: u64| run_case(1, Some(cases[index as usize]));
    run_seeds(0..cases.len() as u64, run, |report| reports.push(report));
    let mut not_reached = Vec::new();
    for report in &reports {
        let (name, outcome) = (&report.steps[0].0, outcome_of(report));
        println!("{name}: {outcome}");
        let case = Case::named(name).unwrap();
        if outcome == "the step was not reached" {
            not_reached.push(name.clone());
        } else if case.fault.is_of_message() && case.fault != Fault::VeryLate {
            assert_eq!(outcome, "moved", "{name}: the move should survive it");
            assert_eq!(report.lost, 0, "{name}");
        }
    }
    assert_eq!(not_reached, Vec::<String>::new());
}

#[test]
fn moves_with_random_faults_leave_one_owner_and_streams_without_wrong_bytes() {
    let mut reports = Vec::new();
    run_seeds(0..SWARM_SEEDS, run_swarm, |report| reports.push(report));
    for report in &reports {
        assert!(
            report.violations.is_empty(),
            "replay with: spillway-lab sim moves --swarm --seed {}\n{report:#?}",
            report.seed
        );
    }
    let moved = reports.iter().flat_map(|report| &report.steps).filter(|(_, outcome)| outcome == "moved");
    assert!(moved.count() > 3 * SWARM_SEEDS as usize);
}

#[test]
fn every_planted_fault_of_moves_is_detected_by_its_check() {
    assert_eq!(outcome_of(&run_case(1, None)), "moved");
    for seed in SEEDS {
        let report = run_planted(seed, None);
        assert_eq!(
            report.violations,
            Vec::<String>::new(),
            "seed {seed}: no violation may be reported without a planted fault"
        );
        assert_eq!((report.timeouts, report.lost), (0, 0), "seed {seed}");
    }
    for planted in PlantedFault::OF_MOVES {
        let is_detected = |seed: &u64| {
            let report = run_planted(*seed, Some(planted));
            report.violations.iter().any(|what| what.contains(planted.violation_text()))
        };
        let seed = SEEDS.into_iter().find(is_detected);
        println!("{planted:?} was detected with seed {seed:?}");
        assert!(seed.is_some(), "{planted:?} was not detected with any of the seeds {SEEDS:?}");
    }
}
