//! Random sequences through the rules in Rust and the XDP program, which must agree.
//!
//! `SWITCH_STEPS` is the number of frames (a million by default) and `SWITCH_SEED` the first seed. A difference prints
//! the command that replays its sequence, with states compared after each step.

use std::env;

use spillway_switch_cases::case::{folder, host_folder, read_setup};
use spillway_switch_cases::program::Program;
use spillway_switch_cases::random::{Difference, Lockstep, RandomCoverage, run};
use spillway_switch_cases::rules::Rules;
use spillway_switch_cases::setup::Setup;

/// Frames of one seed: then another configuration follows.
const STEPS_PER_SEED: u64 = 20_000;
const STEPS: u64 = 1_000_000;
/// Reading all maps costs as much as this number of frames.
const STEPS_BETWEEN_STATES: u64 = 200;
/// Frames after which everything that is reachable has been reached.
const STEPS_FOR_COVERAGE: u64 = 400_000;

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

/// Runs seeds until `steps` frames were handled.
fn run_all(base: &Setup, steps: u64, program: impl Fn(&Setup) -> Option<Program>) -> RandomCoverage {
    let first = number("SWITCH_SEED", 1);
    let mut coverage = RandomCoverage::default();
    for (seed, done) in (first..).zip((0..steps).step_by(STEPS_PER_SEED as usize)) {
        let steps = STEPS_PER_SEED.min(steps - done);
        let lockstep = Lockstep { seed, steps, steps_between_states: STEPS_BETWEEN_STATES };
        match run(lockstep, base, Rules::new, &program) {
            Ok(reached) => coverage.add(&reached),
            Err(difference) => fail(lockstep, base, difference, &program),
        }
    }
    coverage
}

/// Replays the sequence with states compared after each step, so that the message names the step that differs first.
fn fail(
    lockstep: Lockstep,
    base: &Setup,
    difference: Difference,
    program: impl Fn(&Setup) -> Option<Program>,
) -> ! {
    let steps = difference.step + 1;
    let exact = Lockstep { steps, steps_between_states: 1, ..lockstep };
    let difference = run(exact, base, Rules::new, program).err().unwrap_or(difference);
    panic!(
        "{difference}\nreplay: SWITCH_SEED={} SWITCH_STEPS={steps} cargo test --release -p spillway-switch-cases \
         --test random -- --nocapture",
        lockstep.seed
    );
}

fn check(coverage: &RandomCoverage, steps: u64, is_host: bool) {
    println!("{}", coverage.show());
    let unexpected = coverage.unexpected(is_host);
    assert!(unexpected.is_empty(), "not in the list of reachable answers: {unexpected:?}");
    if steps >= STEPS_FOR_COVERAGE {
        let missing = coverage.missing(is_host);
        assert!(missing.is_empty(), "{steps} frames have not reached: {missing:?}");
    }
}

/// The setups of both modes.
fn bases() -> [Setup; 2] {
    [folder(), host_folder()].map(|folder| read_setup(&folder).unwrap_or_else(|error| panic!("{error}")))
}

/// Without privileges this is all that runs: no panic, generations that never return, and everything is reached.
#[test]
fn sequences_reach_all_verdicts_and_answers() {
    let steps = number("SWITCH_STEPS", STEPS_FOR_COVERAGE).min(STEPS_FOR_COVERAGE);
    for base in bases() {
        check(&run_all(&base, steps, |_| None), steps, base.is_host);
    }
}

#[test]
fn rules_and_program_agree() {
    let steps = number("SWITCH_STEPS", STEPS);
    for base in bases() {
        if Program::load(&base).is_none() {
            return;
        }
        let program = |setup: &Setup| Some(Program::load(setup).expect("it was loaded before"));
        check(&run_all(&base, steps, program), steps, base.is_host);
    }
}
