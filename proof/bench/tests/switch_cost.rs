//! A short run of the experiment `switch-cost`: it completes, every frame is right, and all rows and ratios are present;
//! figures are not checked. Needs root; round trips also need the built `spillway-lab` in the directory of this test.

mod support;

use std::path::Path;
use std::time::Duration;

use spillway_bench::experiments::switch::cost::{Effort, run_with};
use spillway_bench::programs::Programs;
use spillway_bench::results::Results;
use spillway_bench::scene::Setting;
use support::{assert_complete, programs};

fn effort() -> Effort {
    Effort { rounds: 1, runs: 10, round_trips: 10, transfer: Duration::from_millis(50) }
}

fn assert_ratios(results: &Results, names: &[&str]) {
    for name in names {
        assert!(results.ratios.iter().any(|ratio| ratio.name == *name), "no ratio {name}");
    }
}

#[test]
fn runs_of_the_program_complete_with_all_rows() {
    if let Some(why) = spillway_lab::unavailable() {
        return println!("skipped: {why}");
    }
    // This part starts no program.
    let setting = Setting::new(Programs::in_directory(Path::new("")));
    let mut output = Vec::new();
    let results = run_with(&setting, &effort(), &["program".into()], &mut output).unwrap();
    let metrics = [
        "ns_per_packet",
        "ns_per_packet_above_return",
        "ns_per_control",
        "ns_per_control_without_tags",
        "ns_per_tag",
    ];
    assert_complete(&results, &output, &metrics);
    for kind in ["plain L2", "no entry", "rewritten in", "rewritten out"] {
        let is_row = |row: &&spillway_bench::results::Row| {
            row.metric == "ns_per_packet" && row.params.get("kind") == Some(&kind.into())
        };
        assert!(results.rows.iter().any(|row| is_row(&row) && row.median.is_some()), "{kind}");
    }
    for kind in ["get", "hold", "own", "heartbeat", "prepare"] {
        let is_row = |row: &&spillway_bench::results::Row| {
            row.metric == "ns_per_control" && row.params.get("kind") == Some(&kind.into())
        };
        let rows = results.rows.iter().filter(is_row);
        let expected = if kind == "prepare" { 2 } else { 1 };
        assert_eq!(rows.filter(|row| row.median.is_some()).count(), expected, "{kind}");
    }
    assert_ratios(&results, &["ns_100000_entries_over_10", "ns_100000_entries_over_10_uniform"]);
}

#[test]
fn hosts_exchange_messages_and_bytes_with_all_rows() {
    let programs = match programs(&[]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let mut output = Vec::new();
    let only = ["round-trips".to_owned(), "throughput".to_owned()];
    let results = run_with(&Setting::new(programs), &effort(), &only, &mut output).unwrap();
    let metrics = [
        "control_round_trip_us",
        "control_round_trip_p99_us",
        "host_round_trip_us",
        "added_delay_per_hop_us",
        "throughput_gbit_per_s",
    ];
    assert_complete(&results, &output, &metrics);
    let names = ["daemon_over_in_program", "daemon_over_in_program_across_cores", "throughput_over_bridge"];
    assert_ratios(&results, &names);
    for check in ["wrong", "transferred", "equal offloads"] {
        assert!(results.checks.iter().any(|found| found.name == check), "no check {check}");
    }
}
