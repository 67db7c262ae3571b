//! Short runs of the experiments on moves between servers: they complete, every byte is right, and all rows are present;
//! figures are not checked. Needs root, and the programs in the directory of this test.

mod support;

use std::path::Path;
use std::time::Duration;

use spillway_bench::experiments::moves::{handoff, load, migration};
use spillway_bench::programs::Programs;
use spillway_bench::scene::Setting;
use spillway_load::config::ProtocolKind;
use support::{assert_complete, programs};

fn effort() -> migration::Effort {
    migration::Effort { rounds: 1, passes: 2, quiet_moves: 8, quiet_passes: 2, busy_moves: 8 }
}

#[test]
fn moves_in_memory_complete_with_all_rows() {
    // This part starts no program.
    let setting = Setting::new(Programs::in_directory(Path::new("")));
    let mut output = Vec::new();
    let results = migration::run_with(&setting, &effort(), &["memory".into()], &mut output).unwrap();
    let metrics =
        ["host_cpu_us", "host_cpu_without_seal_us", "seal_us", "switch_us", "end_to_end_us", "phase_us"];
    assert_complete(&results, &output, &metrics);
    for state_bytes in [0, 1 << 10, 16 << 10, 64 << 10, 128 << 10] {
        let has_state = |row: &&spillway_bench::results::Row| {
            row.metric == "host_cpu_us" && row.params.get("state_bytes") == Some(&state_bytes.into())
        };
        assert!(results.rows.iter().any(|row| has_state(&row) && row.median.is_some()), "{state_bytes}");
    }
}

#[test]
fn moves_between_processes_complete_with_all_rows() {
    let programs = match programs(&[]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let only = ["quiet".to_owned(), "busy".to_owned()];
    let mut output = Vec::new();
    let results = migration::run_with(&Setting::new(programs), &effort(), &only, &mut output).unwrap();
    let metrics = [
        "host_cpu_us",
        "process_cpu_us",
        "moves_per_s",
        "end_to_end_us",
        "blackout_us",
        "phase_us",
        "request_over_move_us",
        "request_us",
        "requests_after_timeout",
    ];
    assert_complete(&results, &output, &metrics);
    for check in ["wrong", "lost", "retransmission timeouts", "steps"] {
        assert!(results.checks.iter().any(|found| found.name == check), "no check {check}");
    }
}

#[test]
fn load_with_policies_and_forced_moves_completes_with_all_rows() {
    let programs = match programs(&[]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let effort = load::Effort {
        rounds: 1,
        scenes: vec![(ProtocolKind::Memcached, 2), (ProtocolKind::Http, 2)],
        course: Duration::from_millis(500),
        forced: Duration::from_millis(300),
        delays: vec![Duration::ZERO, Duration::from_micros(500)],
        connections: 20,
    };
    let mut output = Vec::new();
    let results = load::run_with(&Setting::new(programs), &effort, &[], &mut output).unwrap();
    assert_complete(&results, &output, &["p99_us", "moves", "knee_us"]);
    for ratio in [
        "p99_proactive_over_none_memcached_skew_2_servers",
        "moves_proactive_over_reactive_http_steps_2_servers",
    ] {
        assert!(results.ratios.iter().any(|found| found.name == ratio), "no ratio {ratio}");
    }
    let forced =
        |row: &&spillway_bench::results::Row| row.metric == "moves" && row.params.contains_key("delay_us");
    assert_eq!(results.rows.iter().filter(forced).count(), 4, "two delays at two rates");
    // On a busy machine no figure is valid, but moves have been made.
    assert!(results.checks.iter().all(|check| !check.detail.contains(" 0 moves")), "{:?}", results.checks);
}

#[test]
fn hand_offs_of_requests_complete_with_all_rows() {
    let programs = match programs(&[]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let effort = handoff::Effort { rounds: 1, tours: 8, cycles: 8, quiet: 8, cpu_requests: 64 };
    let mut output = Vec::new();
    let results = handoff::run_with(&Setting::new(programs), &effort, &[], &mut output).unwrap();
    let metrics = [
        "total_us",
        "blackout_us",
        "cycle_us",
        "line_us",
        "part_us",
        "request_us",
        "handed_off_request_us",
        "requests_after_timeout",
        "http_parse_us",
        "kernel_host_cpu_us",
        "user_host_cpu_us",
    ];
    assert_complete(&results, &output, &metrics);
    for system in ["kernel", "stack"] {
        for check in ["hand-offs", "wrong", "resets", "lost", "retransmission timeouts", "steps"] {
            let name = format!("{system}: {check}");
            assert!(results.checks.iter().any(|found| found.name == name), "no check {name}");
        }
        for direction in ["frontend_to_backend", "backend_to_backend", "backend_to_frontend"] {
            let has_total = |row: &&spillway_bench::results::Row| {
                row.system == system
                    && row.metric == "total_us"
                    && row.params.get("direction") == Some(&direction.into())
            };
            assert!(
                results.rows.iter().any(|row| has_total(&row) && row.median.is_some()),
                "{system} {direction}"
            );
        }
    }
}
