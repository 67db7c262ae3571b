//! The user-level stack in the simulator, over many seeds. Planted faults must be detected.

use spillway_sim::run_seeds;
use spillway_sim::tcp::planted_fault::PlantedFault;
use spillway_sim::tcp::{Report, Worlds, run};

/// Number of seeds, and frames of each fault phase. `spillway-lab sim tcp --swarm` runs more.
const SEEDS: u64 = 90;
const PACKETS: u64 = 10_000;
/// Seeds of worlds with many moves.
const MOVING_SEEDS: u64 = 12;
/// Seeds of worlds in which requests are handed off.
const REQUEST_SEEDS: u64 = 12;
/// Each planted fault is detected within this many seeds.
const SEEDS_PER_FAULT: u64 = 40;

#[test]
fn every_byte_arrives_every_connection_ends_and_every_segment_is_valid() {
    let mut reports: Vec<Report> = Vec::new();
    run_seeds(0..SEEDS, |seed| run(seed, PACKETS, Worlds::All), |report| reports.push(report));
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
    let (moves, returned, in_place) =
        (sum(|r| r.moves), sum(|r| r.moves_returned), sum(|r| r.moves_in_place));
    let (not_owner, reclaimed, rogue_frames) =
        (sum(|r| r.not_owner), sum(|r| r.reclaimed), sum(|r| r.rogue_frames));
    let [silence, restart, doubt] =
        [sum(|r| r.lost_by_silence), sum(|r| r.lost_by_restart), sum(|r| r.lost_in_doubt)];
    println!(
        "{packets} frames, {delivered} bytes, {completed} connections complete, {damaged} frames damaged, \
         {timeouts} timeouts, {moves} moves, {returned} returned, {in_place} in place, {not_owner} segments of servers \
         that were no owners, {reclaimed} flows taken back, {silence} connections lost by silence, {restart} by restarts, \
         {doubt} in doubt, {rogue_frames} frames of rogue hosts"
    );
    let ipv6 = sum(|r| u64::from(r.is_ipv6));
    assert!((SEEDS / 5..SEEDS / 2).contains(&ipv6), "{ipv6} of {SEEDS} worlds have IPv6 addresses");
    let (restarts, holds, lists) = (sum(|r| r.server_restarts), sum(|r| r.holds), sum(|r| r.lists));
    assert!(restarts > 10 && holds > 5 && lists > 100, "{restarts} restarts, {holds} holds, {lists} lists");
    assert!(packets >= 2_000_000 && damaged > 1_000 && timeouts > 1_000 && faults > 1_000, "too few events");
    assert!(in_place > 100_000 && rogue_frames > 100_000, "too few moves or rogue frames");
    assert!(moves > 5_000 && not_owner > 500 && reclaimed > 50, "too few moves through the switch");
    // Connections that are lost although nothing in the servers and the switch is wrong must stay rare.
    assert!(silence + restart + doubt < 100, "too many connections were lost by design");
}

/// Worlds with many moves: `spillway-lab sim tcp --moves --swarm` runs others.
#[test]
fn nothing_is_lost_or_altered_where_connections_move_often() {
    let mut moves = 0;
    run_seeds(
        0..MOVING_SEEDS,
        |seed| run(seed, PACKETS, Worlds::Moving),
        |report| {
            let replay = format!("replay with: spillway-lab sim tcp --moves --seed {} --frames", report.seed);
            assert_eq!(report.violations, Vec::<String>::new(), "{replay}");
            moves += report.moves;
        },
    );
    println!("{moves} moves");
    assert!(moves > 500 * MOVING_SEEDS, "too few moves: {moves}");
}

/// Worlds in which half of the moves hand a request off: `spillway-lab sim tcp --requests --swarm` runs others.
#[test]
fn each_request_is_executed_once_and_its_origin_learns_once_how_it_ended() {
    let mut reports: Vec<Report> = Vec::new();
    run_seeds(
        0..REQUEST_SEEDS,
        |seed| run(seed, PACKETS, Worlds::Requests),
        |report| {
            let replay =
                format!("replay with: spillway-lab sim tcp --requests --seed {} --frames", report.seed);
            assert_eq!(report.violations, Vec::<String>::new(), "{replay}");
            reports.push(report);
        },
    );
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let (handed_off, served, returned) =
        (sum(|r| r.requests_handed_off), sum(|r| r.requests_served), sum(|r| r.requests_returned));
    let [stayed, abandoned, unknown] =
        [sum(|r| r.requests_stayed), sum(|r| r.requests_abandoned), sum(|r| r.requests_unknown)];
    println!(
        "{handed_off} arrivals with a request, {served} served elsewhere, {returned} returned, {stayed} stayed, \
         {abandoned} abandoned, {unknown} unknown"
    );
    assert!(handed_off > 100 * REQUEST_SEEDS && served > 20 * REQUEST_SEEDS, "too few requests");
    assert!(returned > 20 * REQUEST_SEEDS && stayed > 10 * REQUEST_SEEDS, "too few requests come back");
    assert!(abandoned > 0 && unknown > 0, "too few connections end meanwhile");
}

/// Worlds with moves in which the stack, the protocol or a check was once wrong.
#[test]
fn worlds_that_were_reported_pass() {
    for seed in [500_235, 500_237, 600_234, 601_739] {
        let report = run(seed, PACKETS, Worlds::Moving);
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn equal_seeds_give_equal_traces() {
    for seed in 0..4 {
        assert_eq!(run(seed, 3_000, Worlds::All), run(seed, 3_000, Worlds::All));
    }
    assert_ne!(run(1, 3_000, Worlds::All).trace_hash, run(2, 3_000, Worlds::All).trace_hash);
}

#[test]
fn every_planted_fault_is_detected_by_its_check() {
    let of_moves = [PlantedFault::ForgetBuffer, PlantedFault::ReplaySeal, PlantedFault::Bounce];
    for planted in PlantedFault::ALL.into_iter().filter(|planted| !of_moves.contains(planted)) {
        let is_detected = |seed: &u64| {
            let report = run(*seed, 5_000, Worlds::Planted(planted));
            report.violations.iter().any(|what| what.contains(planted.violation_text()))
        };
        let seed = (0..SEEDS_PER_FAULT).find(is_detected);
        println!("{planted:?} was detected with seed {seed:?}");
        assert!(seed.is_some(), "{planted:?} was not detected with any of {SEEDS_PER_FAULT} seeds");
    }
}

/// Earlier drops are not in the report; a replay with `--frames` prints all.
#[test]
fn report_of_a_failed_run_has_the_last_drops() {
    let passed = run(1, 1_000, Worlds::All);
    assert_eq!((passed.violations.len(), passed.dropped.len()), (0, 0));
    let mut reports = (0..20).map(|seed| run(seed, 5_000, Worlds::Planted(PlantedFault::FlipByte)));
    let has_both = |report: &spillway_sim::tcp::Report| {
        !report.violations.is_empty() && report.dropped.iter().any(|line| line.contains(" drops "))
    };
    assert!(reports.any(|report| has_both(&report)));
}
