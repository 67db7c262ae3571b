//! Moves of connections, step by step: a fault at each step, by name. Planted faults must be detected.

use spillway_sim::run_seeds;
use spillway_sim::tcp::planted_fault::PlantedFault;
use spillway_sim::tcp::scenario::case::{Case, Fault};
use spillway_sim::tcp::scenario::{Moves, ScenarioReport, run};

/// Seeds of the test with random faults; `spillway-lab sim moves --swarm` runs other seeds.
const SWARM_SEEDS: u64 = 12;
/// In the worlds of these seeds moves without a fault lead to no retransmission timeout. They include those in which the
/// end of a connection at its target was not acknowledged.
const CALM_SEEDS: u64 = 60;
/// Each planted fault is detected with one of these seeds.
const PLANTED_SEEDS: u64 = 8;

fn outcome_of(report: &ScenarioReport) -> &str {
    assert!(report.violations.is_empty(), "{report:#?}");
    assert_eq!(report.steps.len(), 1, "{report:?}");
    &report.steps[0].1
}

#[test]
fn a_fault_at_any_step_leaves_one_owner_and_a_stream_without_wrong_bytes() {
    let cases: Vec<Case> = Case::all().collect();
    let mut reports = Vec::new();
    let run_one = |index: u64| run(1, Moves::Case(cases[index as usize]));
    run_seeds(0..cases.len() as u64, run_one, |report| reports.push(report));
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
        } else if case.fault == Fault::SwitchDies {
            // Both servers live: the source finds out from the target which of them has the connection.
            assert!(["moved", "kept", "returned"].contains(&outcome), "{name}: {outcome}");
            assert_eq!(report.lost, 0, "{name}");
        }
    }
    assert_eq!(not_reached, Vec::<String>::new());
}

#[test]
fn moves_with_random_faults_leave_one_owner_and_streams_without_wrong_bytes() {
    let mut reports = Vec::new();
    run_seeds(0..SWARM_SEEDS, |seed| run(seed, Moves::Swarm), |report| reports.push(report));
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

/// No request waits for a retransmission timeout because of a move.
#[test]
fn without_a_fault_no_move_leads_to_a_retransmission_timeout() {
    let (mut moved, mut moves) = (0, 0);
    run_seeds(
        0..CALM_SEEDS,
        |seed| run(seed, Moves::Twelve(None)),
        |report| {
            let replay =
                format!("replay with: spillway-lab sim moves --calm --frames --seed {}", report.seed);
            assert_eq!(report.violations, Vec::<String>::new(), "{replay}");
            assert_eq!((report.timeouts, report.lost), (0, 0), "{replay}");
            moves += report.steps.len();
            moved += report.steps.iter().filter(|(_, outcome)| outcome == "moved").count();
        },
    );
    println!("{moved} of {moves} moves reached their targets");
    assert!(moved > 10 * CALM_SEEDS as usize, "{moved} of {moves} moves reached their targets");
}

#[test]
fn every_planted_fault_of_moves_is_detected_by_its_check() {
    for planted in PlantedFault::OF_MOVES {
        let is_detected = |seed: &u64| {
            let report = run(*seed, Moves::Twelve(Some(planted)));
            report.violations.iter().any(|what| what.contains(planted.violation_text()))
        };
        let seed = (0..PLANTED_SEEDS).find(is_detected);
        println!("{planted:?} was detected with seed {seed:?}");
        assert!(seed.is_some(), "{planted:?} was not detected with any of {PLANTED_SEEDS} seeds");
    }
}
