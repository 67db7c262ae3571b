//! Short runs of the experiments with the user-level stack on interfaces: they complete, every byte is right,
//! and all rows are present; figures are not checked. Needs root; `coexist` also memcached, and the
//! `spillway` command and its preload library in the directory of this test.

mod support;

use std::path::Path;
use std::time::Duration;

use spillway_bench::experiments::tcp::{coexist, engine, gate, tcp_interop};
use spillway_bench::programs::Programs;
use spillway_bench::scene::Setting;
use support::{SHORT, assert_complete, programs};

/// Settings without programs: these experiments start neither `spillway` nor `spillway-lab`.
fn setting() -> Setting {
    Setting::new(Programs::in_directory(Path::new("")))
}

fn skipped() -> bool {
    let reason = spillway_lab::unavailable();
    if let Some(reason) = &reason {
        println!("skipped: {reason}");
    }
    reason.is_some()
}

#[test]
fn tcp_interop_completes_with_all_rows() {
    if skipped() {
        return;
    }
    let short = Duration::from_millis(100);
    let effort =
        tcp_interop::Effort { rounds: 1, bulk: short, messages: short, ..tcp_interop::Effort::quick() };
    let mut output = Vec::new();
    let results = tcp_interop::run_with(&setting(), &effort, &mut output).unwrap();
    let metrics = ["bulk_bytes_per_s", "sent_again_percent", "round_trips_per_s", "p50_us", "loop_percent"];
    assert_complete(&results, &output, &metrics);
    for work in ["bulk_over_linux", "round_trips_over_linux"] {
        for suffix in ["", "_loss1", "_loss3", "_reordering"] {
            let name = format!("{work}{suffix}");
            assert!(results.ratios.iter().any(|ratio| ratio.name == name), "no ratio {name}");
        }
    }
    assert!(results.machine.offloads.contains("tso"), "{:?}", results.machine);
}

#[test]
fn gate_completes_with_all_rows() {
    if skipped() {
        return;
    }
    let effort = gate::Effort {
        rounds: 1,
        gates_ms: vec![0, 10, 300],
        length: Duration::from_millis(100),
        bulk_gates: 2,
        message_gates: 2,
    };
    let mut output = Vec::new();
    let results = gate::run_with(&setting(), &effort, &mut output).unwrap();
    let metrics = ["bulk_bytes_per_s", "round_trips_per_s", "p99_us", "sent_again_percent", "timeouts"];
    assert_complete(&results, &output, &metrics);
    assert!(results.ratios.iter().any(|ratio| ratio.name == "bulk_over_open_gate_300ms"));
}

#[test]
fn engine_completes_with_all_rows() {
    if skipped() {
        return;
    }
    let effort = engine::Effort {
        rounds: 1,
        bursts: vec![1, 8],
        rates: vec![2_000.0],
        warm_up: Duration::from_millis(20),
        length: Duration::from_millis(50),
        ..engine::Effort::quick()
    };
    let mut output = Vec::new();
    let results = engine::run_with(&setting(), &effort, &mut output).unwrap();
    let metrics = ["cpu_ns_per_frame", "frames_per_turn", "p50_us", "stage_ns_per_frame"];
    assert_complete(&results, &output, &metrics);
    for (system, stages) in [
        ("tap", &["driver", "stack", "relay", "all"][..]),
        ("af_xdp", &["driver", "rings", "crossing", "stack", "relay", "all"]),
    ] {
        for stage in stages {
            let is_stage = |row: &&spillway_bench::results::Row| {
                row.system == system && row.params.get("stage") == Some(&(*stage).into())
            };
            assert_eq!(
                results.rows.iter().filter(is_stage).count(),
                2,
                "{system}, {stage}: one for each burst"
            );
        }
    }
    assert!(results.ratios.iter().any(|ratio| ratio.name == "busy_poll_50us_cpu_at_2000"));
}

#[test]
fn coexist_completes_with_all_rows() {
    let programs = match programs(&["memcached"]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let effort = coexist::Effort {
        rounds: 1,
        rate_per_s: 500.0,
        helped_per_s: 200.0,
        settle: Duration::from_millis(50),
        length: SHORT,
        ..coexist::Effort::quick()
    };
    let mut output = Vec::new();
    let results = coexist::run_with(&Setting::new(programs), &effort, &mut output).unwrap();
    let metrics = ["kernel_throughput", "kernel_cpu_us_per_request", "kernel_p99_us", "helper_percent"];
    assert_complete(&results, &output, &metrics);
    for figure in ["throughput", "p99", "cpu"] {
        for comparison in ["with_over_without", "a_over_a", "with_load_over_sockets"] {
            let name = format!("kernel_{figure}_{comparison}");
            assert!(results.ratios.iter().any(|ratio| ratio.name == name), "no ratio {name}");
        }
    }
}
