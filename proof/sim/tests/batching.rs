//! Batch policies in the model: a policy chosen on some seeds is judged on others.

use std::time::Duration;

use spillway_batch::PolicyKind;
use spillway_sim::batching::{Arrivals, Contest, Costs, Course, Quota, RATES_PER_S, Setting, play};

const MAX_DELAY: Duration = Duration::from_micros(200);
const MAX_BYTES: usize = 64 * 1024;
const STEP: Duration = Duration::from_millis(1_500);
const ADAPTIVE: PolicyKind = PolicyKind::Adaptive { max_delay: MAX_DELAY, max_bytes: MAX_BYTES };
const DEADLINE: PolicyKind = PolicyKind::Deadline { max_delay: MAX_DELAY, max_bytes: MAX_BYTES };
/// For an SLA of 1 ms.
const FOLLOWING: PolicyKind =
    PolicyKind::Following { max_delay: Duration::from_micros(250), max_bytes: MAX_BYTES };
const FIXED: PolicyKind = PolicyKind::Fixed { delay: MAX_DELAY, bytes: MAX_BYTES };

/// A server with a tenth of a core, as in the laboratory.
fn small() -> Setting {
    let quota = Quota { time: Duration::from_millis(1), period: Duration::from_millis(10) };
    Setting { quota: Some(quota), ..Setting::default() }
}

fn contest(setting: Setting, arrivals: Arrivals) -> Contest {
    let course = Course { arrivals, ..Course::up_and_down(&RATES_PER_S, STEP) };
    Contest { course, setting, reference: ADAPTIVE }
}

#[test]
fn the_best_policy_of_some_seeds_is_better_than_adaptive_on_others() {
    let contest = contest(small(), Arrivals::Poisson);
    let best = contest.choose(&[PolicyKind::Algorithm1, FIXED, DEADLINE], 1..=3);
    assert_eq!(best, Some(DEADLINE));
    let judged = contest.judge(DEADLINE, 101..=104);
    assert!(judged.is_no_worse() && judged.p99.min(judged.server_cpu) <= 0.8, "{judged:?}");
}

#[test]
fn the_best_policy_is_no_worse_on_an_idle_server() {
    let judged = contest(Setting::default(), Arrivals::Poisson).judge(DEADLINE, 101..=103);
    assert!(judged.is_no_worse() && judged.score() < 0.9, "{judged:?}");
    let bursts = Arrivals::Bursts(Duration::from_millis(5));
    let judged = contest(Setting::default(), bursts).judge(DEADLINE, 101..=103);
    assert!(judged.p99 < 1.02 && judged.server_cpu < 0.97, "in bursts: {judged:?}");
}

#[test]
fn batches_that_follow_the_server_are_better_in_both_with_an_sla() {
    let judged = contest(small(), Arrivals::Poisson).judge(FOLLOWING, 101..=104);
    assert!(judged.p99 <= 0.88 && judged.server_cpu <= 0.85, "{judged:?}");
}

#[test]
fn they_keep_up_on_a_slow_machine_where_others_leave_a_backlog() {
    let slow = Setting { costs: Costs::default().times(2.3), ..small() };
    let contest = contest(slow, Arrivals::Poisson);
    let worst = |policy| {
        let steps = play(&contest.course, policy, &slow, 101);
        steps.iter().map(|step| step.p99_us).fold(0.0, f64::max)
    };
    let (following, deadline) = (worst(FOLLOWING), worst(DEADLINE));
    assert!(following < 20_000.0 && deadline > 200_000.0, "{following} µs, {deadline} µs");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let contest = contest(small(), Arrivals::Poisson);
    let run = |seed| play(&contest.course, DEADLINE, &contest.setting, seed);
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn batches_follow_the_load() {
    let contest = contest(Setting::default(), Arrivals::Poisson);
    let steps = play(&contest.course, DEADLINE, &contest.setting, 7);
    let [low, _, _, high, ..] = steps[..] else { panic!("seven steps") };
    assert!(low.messages_per_batch < 1.2 && high.messages_per_batch > 2.5, "{steps:?}");
    assert!(high.interval_us < low.interval_us / 2.0, "{steps:?}");
}
