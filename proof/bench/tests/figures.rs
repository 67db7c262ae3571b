//! Short runs of the experiments that reproduce figures of the paper: they complete, every byte is right, and
//! all rows are present; figures are not checked. Needs root, the servers under test, and the `spillway`
//! command and its preload library in the directory of this test.

mod support;

use std::time::Duration;

use spillway_bench::experiments::batch::payload::ServerTcp;
use spillway_bench::experiments::batch::{adaptive, helpers, load_latency, payload, table1};
use spillway_bench::experiments::sessions::{activation, sidecar};
use spillway_bench::generator::Engine;
use spillway_bench::scene::Setting;
use support::{SHORT, assert_complete, programs};

#[test]
fn load_latency_completes_with_all_rows() {
    let programs = match programs(&["memcached"]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let effort = load_latency::Effort {
        rounds: 1,
        rates: vec![300.0, 600.0],
        helpers: vec![2],
        connections: 30,
        settle: Duration::from_millis(50),
        length: SHORT,
        attempts_max: 1,
    };
    let mut output = Vec::new();
    let results = load_latency::run_with(&Setting::new(programs), &effort, &mut output).unwrap();
    assert_complete(&results, &output, &["p99_us", "pays_from_per_s", "pays_until_per_s"]);
    // At least GET and SET, direct and helped, at each of two rates.
    assert!(results.rows.len() >= 8, "{:?}", results.rows);
}

#[test]
fn payload_completes_with_all_rows() {
    let programs = match programs(&[]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let effort = payload::Effort {
        rounds: 1,
        payloads: vec![64, 32_768],
        quotas_percent: vec![10.0, 50.0],
        connections: 20,
        settle: Duration::from_millis(50),
        length: SHORT,
        attempts_max: 1,
    };
    for tcp in [ServerTcp::Kernel, ServerTcp::Stack] {
        let mut output = Vec::new();
        let results = payload::run_with(&Setting::new(programs.clone()), &effort, tcp, &mut output).unwrap();
        assert_complete(&results, &output, &["messages_per_s", "crossing_bytes", "crossing_cpu_bytes"]);
        let name = "helped_over_direct_32768_at_50_percent";
        assert!(results.ratios.iter().any(|ratio| ratio.name == name), "{tcp:?}");
    }
}

#[test]
fn helpers_completes_with_all_rows() {
    let programs = match programs(&[]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let effort = helpers::Effort {
        rounds: 1,
        counts: vec![1, 3],
        connections_each: 10,
        settle: Duration::from_millis(50),
        length: SHORT,
        attempts_max: 1,
        arrivals: 1,
        clients: 40,
        spread_over: 2,
        ..helpers::Effort::full()
    };
    let mut output = Vec::new();
    let results = helpers::run_with(&Setting::new(programs.clone()), &effort, &mut output).unwrap();
    let metrics = ["goodput_per_helper", "helper_cpu_us_per_request", "max_over_mean_load"];
    assert_complete(&results, &output, &metrics);
    assert!(results.ratios.iter().any(|ratio| ratio.name == "goodput_per_helper_3_over_1"));

    // On the user-level stack, with one helper on kernel sockets for comparison.
    let setting = Setting::new(programs).with_engine(Engine::Xdp);
    let mut output = Vec::new();
    let results = helpers::run_with(&setting, &effort, &mut output).unwrap();
    assert_complete(&results, &output, &metrics[..2]);
    for ratio in ["xdp_goodput_per_helper_3_over_1", "xdp_goodput_per_helper_over_sockets"] {
        assert!(results.ratios.iter().any(|found| found.name == ratio), "no ratio {ratio}");
    }
}

#[test]
fn table1_completes_with_all_rows() {
    let programs = match programs(&[]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let effort = table1::Effort {
        rounds: 1,
        sizes: vec![64, 65_536],
        connections: 10,
        settle: Duration::from_millis(50),
        length: SHORT,
        attempts_max: 1,
        ..table1::Effort::full()
    };
    let mut output = Vec::new();
    let results = table1::run_with(&Setting::new(programs), &effort, &mut output).unwrap();
    assert_complete(&results, &output, &["goodput_gbit_per_s", "server_cpu_us_per_packet"]);
    assert!(results.ratios.iter().any(|ratio| ratio.name == "goodput_per_core_65536_over_64"));
}

#[test]
fn sidecar_completes_with_all_rows() {
    let programs = match programs(&["memcached", "redis-server"]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let effort =
        sidecar::Effort { pairs: 1, settle: Duration::from_millis(50), length: SHORT, attempts_max: 1 };
    let mut output = Vec::new();
    let results = sidecar::run_with(&Setting::new(programs), &effort, &mut output).unwrap();
    assert_complete(&results, &output, &["added_p50_us", "cpu_us_per_request"]);
    // One for each of three protocols.
    assert_eq!(results.rows.iter().filter(|row| row.metric == "added_p50_us").count(), 3);
}

#[test]
fn adaptive_completes_with_all_rows() {
    let programs = match programs(&["memcached"]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let effort = adaptive::Effort {
        choosing: 1,
        judging: 1,
        rates: vec![200.0, 400.0],
        connections: 20,
        settle: Duration::from_millis(50),
        length: SHORT,
        attempts_max: 1,
    };
    let mut output = Vec::new();
    let results = adaptive::run_with(&Setting::new(programs), &effort, &mut output).unwrap();
    assert_complete(&results, &output, &["p99_us", "messages_per_batch", "batch_interval_us"]);
    assert!(results.ratios.iter().any(|ratio| ratio.name == "best_over_adaptive_server_cpu"));
}

#[test]
fn activation_completes_with_all_rows() {
    let programs = match programs(&["memcached"]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let s = Duration::from_secs;
    let effort = activation::Effort {
        rounds: 1,
        connections: 20,
        group: 10,
        swing: s(2),
        half_swing: s(1),
        calm: s(1),
        burst: s(1),
        step: SHORT,
    };
    let mut output = Vec::new();
    let results = activation::run_with(&Setting::new(programs), &effort, &mut output).unwrap();
    assert_complete(&results, &output, &["threshold_per_s", "switches_per_client", "time_over_sla_ms"]);
}
