//! Batch policies in the model: a policy is chosen on some seeds and judged on others.

use std::time::Duration;

use spillway_batch::PolicyKind;
use spillway_sim::batching::{
    Arrivals, BatchingComparison, Costs, LoadCourse, Quota, RATES_PER_S, Setting, simulate,
};

const MAX_DELAY: Duration = Duration::from_micros(200);
const MAX_BYTES: usize = 64 * 1024;
const STEP: Duration = Duration::from_millis(1_500);
const ADAPTIVE: PolicyKind = PolicyKind::Adaptive { max_delay: MAX_DELAY, max_bytes: MAX_BYTES };
const DEADLINE: PolicyKind = PolicyKind::Deadline { max_delay: MAX_DELAY, max_bytes: MAX_BYTES };
/// The maximum delay suits an SLA of 1 ms.
const FOLLOWING: PolicyKind =
    PolicyKind::Following { max_delay: Duration::from_micros(250), max_bytes: MAX_BYTES };
const FIXED: PolicyKind = PolicyKind::Fixed { interval: MAX_DELAY, size_bytes: MAX_BYTES };

/// A tenth of a core, as servers have in the laboratory.
fn tenth_of_a_core() -> Setting {
    let quota = Quota { time: Duration::from_millis(1), period: Duration::from_millis(10) };
    Setting { quota: Some(quota), ..Setting::default() }
}

fn comparison(setting: Setting, arrivals: Arrivals) -> BatchingComparison {
    let course = LoadCourse { arrivals, ..LoadCourse::up_and_down(&RATES_PER_S, STEP) };
    BatchingComparison { course, setting, reference: ADAPTIVE }
}

#[test]
fn best_policy_of_some_seeds_beats_adaptive_on_other_seeds() {
    let comparison = comparison(tenth_of_a_core(), Arrivals::Poisson);
    let best = comparison.choose(&[PolicyKind::Algorithm1, FIXED, DEADLINE], 1..=3);
    assert_eq!(best, Some(DEADLINE));
    let judged = comparison.judge(DEADLINE, 101..=104);
    assert!(judged.is_at_most_reference() && judged.p99.min(judged.server_cpu) <= 0.8, "{judged:?}");
}

#[test]
fn best_policy_is_not_worse_than_adaptive_on_an_idle_server() {
    let judged = comparison(Setting::default(), Arrivals::Poisson).judge(DEADLINE, 101..=103);
    assert!(judged.is_at_most_reference() && judged.score() < 0.9, "{judged:?}");
    let bursts = Arrivals::Bursts(Duration::from_millis(5));
    let judged = comparison(Setting::default(), bursts).judge(DEADLINE, 101..=103);
    assert!(judged.p99 < 1.02 && judged.server_cpu < 0.97, "in bursts: {judged:?}");
}

#[test]
fn following_beats_adaptive_in_p99_and_server_cpu() {
    let judged = comparison(tenth_of_a_core(), Arrivals::Poisson).judge(FOLLOWING, 101..=104);
    assert!(judged.p99 <= 0.88 && judged.server_cpu <= 0.85, "{judged:?}");
}

#[test]
fn following_keeps_up_on_a_slow_machine_where_deadline_leaves_a_backlog() {
    let slow = Setting { costs: Costs::default().times(2.3), ..tenth_of_a_core() };
    let comparison = comparison(slow, Arrivals::Poisson);
    let worst_p99_us = |policy| {
        let steps = simulate(&comparison.course, policy, &slow, 101);
        steps.iter().map(|step| step.p99_us).fold(0.0, f64::max)
    };
    let (following, deadline) = (worst_p99_us(FOLLOWING), worst_p99_us(DEADLINE));
    assert!(following < 20_000.0 && deadline > 200_000.0, "{following} µs, {deadline} µs");
}

#[test]
fn equal_seeds_give_equal_runs() {
    let comparison = comparison(tenth_of_a_core(), Arrivals::Poisson);
    let run = |seed| simulate(&comparison.course, DEADLINE, &comparison.setting, seed);
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn batches_grow_and_intervals_shrink_with_the_load() {
    let comparison = comparison(Setting::default(), Arrivals::Poisson);
    let steps = simulate(&comparison.course, DEADLINE, &comparison.setting, 7);
    let [low, _, _, high, ..] = steps[..] else { panic!("the course should have seven steps") };
    assert!(low.messages_per_batch < 1.2 && high.messages_per_batch > 2.5, "{steps:?}");
    assert!(high.interval_us < low.interval_us / 2.0, "{steps:?}");
}
