//! Short runs of the experiments with the user-level stack and a kernel as its peer: they complete, every byte is
//! right, and all rows are present; figures are not checked. Needs root.

mod support;

use std::path::Path;
use std::time::Duration;

use spillway_bench::experiments::tcp::{gate, tcp_interop};
use spillway_bench::programs::Programs;
use spillway_bench::scene::Setting;
use support::assert_complete;

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
