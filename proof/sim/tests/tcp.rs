//! The user-level stack in the simulator, over many seeds; and planted faults, which must be found.

use spillway_sim::swarm;
use spillway_sim::tcp::canary::Canary;
use spillway_sim::tcp::{Report, run};

/// Seeds of the swarm, and frames of each storm. `spillway-lab sim tcp --swarm` runs more.
const SEEDS: u64 = 90;
const PACKETS: u64 = 10_000;
/// A planted fault shows within so many seeds.
const SEEDS_PER_CANARY: u64 = 40;

#[test]
fn every_byte_arrives_every_connection_ends_and_nobody_says_what_is_not_so() {
    let mut reports: Vec<Report> = Vec::new();
    swarm(0..SEEDS, |seed| run(seed, PACKETS, None), |report| reports.push(report));
    for report in &reports {
        assert!(
            report.violations.is_empty(),
            "replay with: spillway-lab sim tcp --seed {} --packets {PACKETS} --frames\n{report:#?}",
            report.seed
        );
    }
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let (packets, delivered, completed) =
        (sum(|r| r.packets), sum(|r| r.delivered_bytes), sum(|r| r.completed));
    let (damaged, timeouts, faults) = (sum(|r| r.damaged), sum(|r| r.timeouts), sum(|r| r.faults));
    let (moves, rogue_frames) = (sum(|r| r.moves), sum(|r| r.rogue_frames));
    println!(
        "{packets} frames, {delivered} bytes, {completed} connections whole, {damaged} frames damaged, {timeouts} timeouts, \
         {moves} moves, {rogue_frames} frames of those who keep no rules"
    );
    assert!(packets >= 2_000_000 && damaged > 1_000 && timeouts > 1_000 && faults > 1_000, "much happened");
    assert!(moves > 100_000 && rogue_frames > 100_000, "connections moved, and not everybody behaved");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..4 {
        assert_eq!(run(seed, 3_000, None), run(seed, 3_000, None));
    }
    assert_ne!(run(1, 3_000, None).trace_hash, run(2, 3_000, None).trace_hash);
}

#[test]
fn every_canary_is_caught_by_its_check() {
    for canary in Canary::ALL {
        let is_caught = |seed: &u64| {
            let report = run(*seed, 5_000, Some(canary));
            report.violations.iter().any(|what| what.contains(canary.is_told_as()))
        };
        let seed = (0..SEEDS_PER_CANARY).find(is_caught);
        println!("{canary:?} was caught with seed {seed:?}");
        assert!(seed.is_some(), "{canary:?} was not caught");
    }
}

/// A replay with `--frames` prints every drop; the report alone tells the last ones.
#[test]
fn a_seed_that_fails_tells_what_was_dropped_last() {
    let sound = run(1, 1_000, None);
    assert_eq!((sound.violations.len(), sound.dropped.len()), (0, 0));
    let mut reports = (0..20).map(|seed| run(seed, 5_000, Some(Canary::FlipByte)));
    let has_both = |report: &spillway_sim::tcp::Report| {
        !report.violations.is_empty() && report.dropped.iter().any(|line| line.contains(" drops "))
    };
    assert!(reports.any(|report| has_both(&report)));
}
