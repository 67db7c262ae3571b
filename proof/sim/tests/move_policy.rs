//! Policies for moves between servers, over some seeds; and planted faults, which must be detected.

use spillway_sim::move_policy::checker::Check;
use spillway_sim::move_policy::plan::Scenario;
use spillway_sim::move_policy::planted_fault::PlantedFault;
use spillway_sim::move_policy::{PolicyName, Report, RunSettings, run};
use spillway_sim::run_seeds;

/// Number of seeds. `spillway-lab sim move-policy` runs more.
const SEEDS: u64 = 6;
/// Number of seeds with which a planted fault is tried.
const SEEDS_PER_FAULT: u64 = 40;

fn settings(scenario: Scenario, policy: PolicyName) -> RunSettings {
    RunSettings { scenario, policy, has_tight_limits: false, planted: None }
}

fn reports_of(settings: RunSettings) -> Vec<Report> {
    let mut reports = Vec::new();
    run_seeds(0..SEEDS, |seed| run(seed, settings), |report| reports.push(report));
    reports.sort_by_key(|report| report.seed);
    for report in &reports {
        assert!(report.violations.is_empty(), "{report:#?}");
    }
    reports
}

#[test]
fn moves_lower_latency_and_the_proactive_policy_needs_few() {
    for scenario in Scenario::ALL {
        let [none, reactive, proactive] =
            PolicyName::ALL.map(|policy| reports_of(settings(scenario, policy)));
        for (none, proactive) in none.iter().zip(&proactive) {
            assert_eq!(none.requests, proactive.requests, "equal seeds should have equal requests");
            assert!(proactive.p99_us < none.p99_us / 2.0, "{none:?} {proactive:?}");
        }
        let moves = |reports: &[Report]| reports.iter().map(|report| report.moves).sum::<u64>();
        let (few, many) = (moves(&proactive), moves(&reactive));
        assert_eq!(moves(&none), 0);
        assert!(few > 0 && few * 2 < many, "{}: {few} moves, reactive {many}", scenario.name());
    }
}

#[test]
fn policies_are_within_tight_limits() {
    for scenario in Scenario::ALL {
        for policy in [PolicyName::Reactive, PolicyName::Proactive] {
            let tight = RunSettings { has_tight_limits: true, ..settings(scenario, policy) };
            assert!(reports_of(tight).iter().any(|report| report.moves > 0));
        }
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    let settings = settings(Scenario::Steps, PolicyName::Proactive);
    assert_eq!(run(1, settings), run(1, settings));
    assert_ne!(run(1, settings).trace_hash, run(2, settings).trace_hash);
}

/// The first seed, scenario and policy with which the fault's check detects the fault.
fn detecting_run(planted: PlantedFault) -> (u64, Scenario, PolicyName) {
    for seed in 0..SEEDS_PER_FAULT {
        for scenario in [Scenario::Steps, Scenario::Skew] {
            for policy in [PolicyName::Reactive, PolicyName::Proactive] {
                let settings =
                    RunSettings { scenario, policy, has_tight_limits: true, planted: Some(planted) };
                let report = run(seed, settings);
                if report.violations.iter().any(|violation| violation.check == planted.detecting_check()) {
                    return (seed, scenario, policy);
                }
            }
        }
    }
    panic!("{planted:?} was not detected with any of {SEEDS_PER_FAULT} seeds");
}

#[test]
fn every_planted_fault_is_detected_by_its_check() {
    for planted in PlantedFault::ALL {
        let (seed, scenario, policy) = detecting_run(planted);
        println!("{planted:?}: seed {seed}, {}, {}", scenario.name(), policy.name());
    }
    for check in Check::LIMITS {
        assert!(
            PlantedFault::ALL.iter().any(|planted| planted.detecting_check() == check),
            "{check:?} should detect at least one planted fault"
        );
    }
}
