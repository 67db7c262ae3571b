//! A short run of the experiments on proxies: it completes, every byte is right, requests are handed off, and all rows are
//! present; figures are not checked. Needs root, nginx and haproxy, and the programs in the directory of this test.

mod support;

use std::time::Duration;

use spillway_bench::experiments::proxy::{Effort, run_with};
use spillway_bench::results::Row;
use spillway_bench::scene::Setting;
use support::{assert_complete, programs};

#[test]
fn each_system_serves_objects_of_all_sizes_and_ours_hand_requests_off() {
    let programs = match programs(&["nginx", "haproxy"]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let effort = Effort {
        backends: vec![2],
        sizes: vec![64, 256 << 10, 4 << 20],
        open_sizes: vec![256 << 10],
        connections_per_backend: 4,
        warm_up: Duration::from_millis(300),
        length: Duration::from_millis(700),
        ..Effort::quick()
    };
    let mut output = Vec::new();
    let results = run_with(&Setting::new(programs), &effort, &[], &mut output).unwrap();
    let metrics = [
        "requests_per_s",
        "frontend_cpu_us_per_request",
        "frontend_cpu_ms_per_gb",
        "p50_us",
        "p90_us",
        "p99_us",
        "moves_per_request",
        "break_even_bytes",
    ];
    assert_complete(&results, &output, &metrics);
    for system in ["spillway-stack", "nginx", "haproxy"] {
        let sizes = results.rows.iter().filter(|row| row.system == system && row.metric == "requests_per_s");
        assert_eq!(sizes.count(), 4, "{system}: three sizes, and one in the open loop");
    }
    for ratio in ["frontend_cpu_nginx_over_ours_256k", "throughput_over_nginx_256k"] {
        assert!(results.ratios.iter().any(|found| found.name == ratio), "no ratio {ratio}");
    }
    // On a busy machine a row has no valid run, so the line of each measurement is read.
    let output = String::from_utf8(output).unwrap();
    let moves = |line: &&str| line.contains("spillway-stack") && !line.contains(" 0.00 moves a request");
    assert!(output.lines().filter(moves).count() >= 3, "requests are handed off:\n{output}");
    assert!(results.rows.iter().all(|row: &Row| row.system != "nginx" || row.metric != "moves_per_request"));
}
