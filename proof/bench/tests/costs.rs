//! Short runs of the cost experiments: they complete, every byte is right, and all rows are present; figures
//! are not checked. Needs root, the servers and proxies under test, and the `spillway` command and its
//! preload library in the directory of this test.

mod support;

use std::time::Duration;

use spillway_bench::experiments::batch::{helper_cost, loss, server_cost};
use spillway_bench::experiments::sessions::{failover, session_cost};
use spillway_bench::scene::Setting;
use spillway_load::config::ProtocolKind;
use support::{SHORT, assert_complete, programs};

#[test]
fn server_cost_completes_with_all_rows() {
    let programs = match programs(&["memcached", "redis-server"]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let effort = server_cost::Effort {
        pairs: 1,
        rounds: 1,
        link_rounds: 1,
        batches: vec![1, 20],
        mixes: vec![(1024, 1.0), (64, 0.5)],
        mix_batches: vec![20],
        rates: vec![500.0],
        depths: vec![20],
        settle: Duration::from_millis(50),
        length: SHORT,
        idle: SHORT,
        ..server_cost::Effort::quick()
    };
    for protocol in [ProtocolKind::Memcached, ProtocolKind::Redis] {
        let mut output = Vec::new();
        let setting = Setting::new(programs.clone());
        let results = server_cost::run_with(&setting, &effort, &[protocol], &mut output).unwrap();
        let metrics = ["server_cpu_us_per_request", "added_delay_p50_us", "idle_shim_cpu_percent"];
        assert_complete(&results, &output, &metrics);
        for ratio in ["shim_over_plain", "direct_over_helped_20"] {
            let name = format!("{protocol}_{ratio}");
            assert!(results.ratios.iter().any(|ratio| ratio.name == name), "no ratio {name}");
        }
        // Only its presence is checked: other work on the machine may spoil the only round.
        assert!(results.ratios.iter().any(|ratio| ratio.name.ends_with("encrypted_over_plain_links_20")));
        assert!(results.rows.iter().any(|row| row.params.get("links") == Some(&"not encrypted".into())));
    }
}

#[test]
fn helper_cost_completes_with_all_rows() {
    let programs = match programs(&["memcached", "nginx", "haproxy", "nutcracker"]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let effort = helper_cost::Effort {
        rounds: 1,
        rates: vec![500.0],
        main_rate_per_s: 500.0,
        settle: Duration::from_millis(50),
        length: SHORT,
        attempts_max: 1,
    };
    let mut output = Vec::new();
    let results = helper_cost::run_with(&Setting::new(programs), &effort, &mut output).unwrap();
    assert_complete(&results, &output, &["middle_cpu_us_per_round_trip", "server_cpu_us_per_request"]);
    for other in ["nginx", "haproxy", "nutcracker"] {
        assert!(results.ratios.iter().any(|ratio| ratio.name == format!("kernel_over_{other}")), "{other}");
    }
}

#[test]
fn loss_completes_with_all_rows() {
    let programs = match programs(&["memcached"]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let effort = loss::Effort {
        rounds: 1,
        shares: vec![0.0, 0.02],
        rate_per_s: 1_000.0,
        settle: SHORT,
        length: Duration::from_millis(600),
        attempts_max: 1,
    };
    let mut output = Vec::new();
    let results = loss::run_with(&Setting::new(programs), &effort, &mut output).unwrap();
    assert_complete(&results, &output, &["p99_ms", "delayed_per_lost_packet", "segments_sent_again"]);
}

#[test]
fn session_cost_completes_with_all_rows() {
    let programs = match programs(&["memcached"]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let effort = session_cost::Effort {
        rounds: 1,
        rates: vec![1_000.0],
        main_rate_per_s: 1_000.0,
        settle: Duration::from_millis(50),
        length: SHORT,
        attempts_max: 1,
    };
    let mut output = Vec::new();
    let results = session_cost::run_with(&Setting::new(programs), &effort, &mut output).unwrap();
    assert_complete(&results, &output, &["server_cpu_us_per_request", "wire_bytes_per_request"]);
    for name in ["session_over_plain_batched_cpu", "session_direct_over_plain"] {
        assert!(results.ratios.iter().any(|ratio| ratio.name == name), "no ratio {name}");
    }
}

#[test]
fn failover_completes_with_all_rows() {
    let programs = match programs(&["memcached"]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let effort = failover::Effort {
        rounds: 1,
        connections: 40,
        rate_per_s: 400.0,
        settle: Duration::from_millis(1_200),
        after: Duration::from_millis(1_000),
        attempts_max: 1,
    };
    let mut output = Vec::new();
    let results = failover::run_with(&Setting::new(programs), &effort, &mut output).unwrap();
    let metrics =
        ["recovered_ms_kill", "recovered_ms_stop", "recovered_ms_cut", "throughput_per_s", "repeated"];
    assert_complete(&results, &output, &metrics);
}
