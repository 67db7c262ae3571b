//! Metrics, status and health of a running helper over HTTP.

#[path = "../../../host/metrics/tests/support/strict.rs"]
mod strict;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spillway_discovery::EtcdAccess;
use spillway_helper::config::{Engine, Register};
use spillway_helper::{Helper, HelperConfig, HelperStatus, METRICS, Service};
use spillway_metrics::process;
use support::{EchoServer, Place, connect, echo, helper_key, wait};

fn start(server: SocketAddr) -> Helper {
    let service = Service {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        keys: vec![helper_key()],
        // No etcd listens at this address, so each attempt to register fails.
        register: Some(Register {
            access: EtcdAccess::default(),
            prefix: format!("etcd:http://{}/cache/", spillway_ports::free_address()).parse().unwrap(),
            link: "127.0.0.1:1".parse().unwrap(),
        }),
        ..Service::new("cache \"quoted\\\"", server)
    };
    let metrics = Some("127.0.0.1:0".parse().unwrap());
    Helper::start(HelperConfig { threads: 2, metrics, ..HelperConfig::new(vec![service]) }).unwrap()
}

fn get(helper: &Helper, path: &str) -> (u16, String) {
    let mut stream = connect(helper.metrics_address().unwrap());
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
    (status, body.to_owned())
}

/// Metrics that have samples only on the engine xdp.
const OF_XDP: [&str; 5] = [
    "spillway_helper_frames_total",
    "spillway_helper_frames_dropped_total",
    "spillway_helper_tcp_events_total",
    "spillway_helper_steered_packets_total",
    "spillway_helper_interrupts_deferred",
];

#[test]
fn every_metric_has_samples_and_the_right_values() {
    let server = EchoServer::start();
    let helper = start(server.address);
    wait("both links", || get(&helper, "/health").0 == 200);
    let port = helper.status().services[0].listen[0];
    let mut clients: Vec<_> = (0..6).map(|_| connect(port)).collect();
    for (seed, client) in clients.iter_mut().enumerate() {
        (0..5).for_each(|round| echo(client, seed * 10 + round, 1000));
    }
    let scrape = strict::read(&get(&helper, "/metrics").1);
    for metric in METRICS.iter().chain(process::METRICS) {
        let family = scrape.get(metric.name).unwrap_or_else(|| panic!("{} is missing", metric.name));
        let found = (family.kind.as_str(), !family.samples.is_empty());
        let has_samples = !OF_XDP.contains(&metric.name);
        assert_eq!(found, (metric.kind.name(), has_samples), "{}", metric.name);
    }
    let old = scrape.keys().filter(|name| name.contains("context") || name.contains("questions")).count();
    assert_eq!(
        scrape.len() - old,
        METRICS.len() + process::METRICS.len(),
        "every metric should be in METRICS"
    );
    assert_eq!(old, 5, "the names of the previous version should be served, too");
    assert_eq!(scrape["spillway_helper_contexts"].sum(&[]), scrape["spillway_helper_threads"].sum(&[]));
    assert_eq!(scrape["spillway_helper_clients"].sum(&[("kind", "raw")]), 6.0);
    let sum = |name: &str, labels: &[(&str, &str)]| scrape[name].sum(labels);
    let service = ("service", "cache \"quoted\\\"");
    assert_eq!(sum("spillway_helper_request_bytes_total", &[service]), 30_000.0);
    assert_eq!(sum("spillway_helper_reply_bytes_total", &[service]), 30_000.0);
    assert!(sum("spillway_helper_request_segments_total", &[service]) >= 30.0);
    assert_eq!(sum("spillway_helper_clients", &[service, ("client", "plain")]), 6.0);
    assert_eq!(sum("spillway_helper_clients_accepted_total", &[("client", "plain")]), 6.0);
    assert_eq!(sum("spillway_helper_links", &[("state", "up")]), 2.0);
    assert_eq!(sum("spillway_helper_links_established_total", &[("thread", "1")]), 1.0);
    assert!(sum("spillway_helper_thread_cpu_seconds_total", &[]) > 0.0);
    assert_eq!(sum("spillway_helper_registered", &[service]), 0.0);
    assert_eq!(sum("spillway_helper_registrations_total", &[service]), 0.0);
    assert!(sum("spillway_helper_registration_failures_total", &[service]) > 0.0);
    let reasons = scrape["spillway_helper_clients_refused_total"].samples.iter();
    let reasons: BTreeSet<&str> = reasons.map(|(_, labels, _)| &*labels.last().unwrap().1).collect();
    assert_eq!(reasons.len(), 17, "the relay has 17 reasons for refusals: {reasons:?}");
    let samples = &scrape["spillway_helper_batch_delay_seconds"].samples;
    let count = samples.iter().find(|(name, _, _)| name.ends_with("_count")).unwrap().2;
    assert_eq!(count, sum("spillway_helper_batches_sent_total", &[]));

    let status: HelperStatus = serde_json::from_str(&get(&helper, "/status").1).unwrap();
    assert_eq!((status.clients, status.services[0].request_bytes), (6, 30_000));
    assert!(
        status.services[0].refused.by_reason.keys().map(String::as_str).eq(reasons),
        "status and metrics should have the same reasons"
    );
    assert_eq!(status.per_thread.len(), 2);
    let (code, page) = get(&helper, "/");
    assert_eq!(code, 200);
    assert!(
        page.contains("cache &quot;quoted") && page.contains("2 of 2") && page.contains("healthy"),
        "{page}"
    );
    assert_eq!(get(&helper, "/no").0, 404);

    drop(server);
    wait("the helper to be unhealthy", || get(&helper, "/health").0 == 503);
    assert!(get(&helper, "/health").1.contains("links to"));
    let scrape = strict::read(&get(&helper, "/metrics").1);
    assert_eq!(scrape["spillway_helper_clients_reset_total"].sum(&[("reason", "link_lost")]), 6.0);
    assert!(scrape["spillway_helper_link_failures_total"].sum(&[]) >= 2.0);
}

/// A helper with one service and metrics, at addresses of `place`.
fn config_at(place: &Place, server: &EchoServer) -> HelperConfig {
    let service = Service {
        listen: vec![place.listen()],
        keys: vec![helper_key()],
        ..Service::new("cache", server.address)
    };
    HelperConfig { metrics: Some(place.listen()), ..HelperConfig::new(vec![service]) }
}

#[test]
fn the_engine_xdp_has_metrics_and_a_status_of_its_own() {
    fn on_xdp(place: &Place) {
        let server = place.echo_server();
        let helper = place.start(HelperConfig { threads: 2, ..config_at(place, &server) }).unwrap();
        wait("both links", || get(&helper, "/health").0 == 200);
        let port = helper.status().services[0].listen[0];
        let mut clients: Vec<_> = (0..6).map(|_| connect(port)).collect();
        for (seed, client) in clients.iter_mut().enumerate() {
            echo(client, seed, 1000);
        }
        let scrape = strict::read(&get(&helper, "/metrics").1);
        let sum = |name: &str, labels: &[(&str, &str)]| scrape[name].sum(labels);
        OF_XDP.iter().for_each(|name| assert!(!scrape[*name].samples.is_empty(), "{name}"));
        let received = sum(OF_XDP[0], &[("direction", "received")]);
        let steered: f64 =
            ["to_endpoint", "to_range"].map(|verdict| sum(OF_XDP[3], &[("verdict", verdict)])).iter().sum();
        assert!(received >= 6.0 * 3.0, "three frames of each client at least: {received}");
        assert!(steered >= received, "{steered} steered, {received} received");
        assert_eq!(sum(OF_XDP[1], &[("reason", "malformed")]), 0.0);
        // No more frames cross: links have chosen ports whose packets arrive at their own thread's queue.
        for (seed, client) in clients.iter_mut().enumerate() {
            (0..20).for_each(|round| echo(client, seed, 1 + 100 * round));
        }
        let later = strict::read(&get(&helper, "/metrics").1);
        let crossed = [("direction", "crossed")];
        assert_eq!(later[OF_XDP[0]].sum(&crossed), sum(OF_XDP[0], &crossed));
        assert_eq!(sum("spillway_helper_engine_info", &[("engine", "xdp"), ("mode", "native")]), 1.0);
        let engine = helper.status().engine;
        assert_eq!((engine.name.as_str(), engine.queues), ("xdp", Some(2)));
        assert!(helper.status().to_string().contains("engine xdp on helper0"), "{}", helper.status());
    }
    Place::run(Engine::Xdp, on_xdp);
}

#[test]
fn interrupts_are_deferred_while_a_helper_is_loaded() {
    fn on_xdp(place: &Place) {
        let server = place.echo_server();
        let mut config = config_at(place, &server);
        config.xdp.defer_interrupts = Duration::from_millis(1);
        let helper = match place.start(HelperConfig { threads: 1, ..config }) {
            Err(error) if error.to_string().contains("Linux 6.13") => return eprintln!("skipped: {error}"),
            started => started.unwrap(),
        };
        wait("the link", || get(&helper, "/health").0 == 200);
        let deferring =
            || strict::read(&get(&helper, "/metrics").1)["spillway_helper_interrupts_deferred"].sum(&[]);
        let port = helper.status().services[0].listen[0];
        let mut clients: Vec<_> = (0..12).map(|_| connect(port)).collect();
        echo(&mut clients[0], 1, 100);
        // Links and clients that connect within a few milliseconds are a load, too.
        wait("the end of the first load", || deferring() == 0.0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(|| {
                    (0..).take_while(|_| !stop.load(Ordering::Relaxed)).for_each(|n| echo(client, n, 100))
                });
            }
            wait("the deferral", || deferring() == 1.0);
            stop.store(true, Ordering::Relaxed);
        });
    }
    Place::run(Engine::Xdp, on_xdp);
}

#[test]
fn a_draining_helper_is_not_healthy() {
    let server = EchoServer::start();
    let helper = start(server.address);
    wait("both links", || get(&helper, "/health").0 == 200);
    let port = helper.status().services[0].listen[0];
    let mut client = connect(port);
    echo(&mut client, 1, 10);
    helper.drain(Duration::from_secs(60));
    wait("the drain", || get(&helper, "/health").0 == 503);
    assert!(get(&helper, "/health").1.contains("draining"));
    assert_eq!(strict::read(&get(&helper, "/metrics").1)["spillway_helper_draining"].sum(&[]), 1.0);
}

#[test]
fn a_full_helper_is_not_healthy() {
    let server = EchoServer::start();
    let service = Service {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        keys: vec![helper_key()],
        ..Service::new("cache", server.address)
    };
    let metrics = Some("127.0.0.1:0".parse().unwrap());
    let config = HelperConfig { threads: 1, max_connections: 2, metrics, ..HelperConfig::new(vec![service]) };
    let helper = Helper::start(config).unwrap();
    wait("the link", || get(&helper, "/health").0 == 200);
    let port = helper.status().services[0].listen[0];
    let mut clients = [connect(port), connect(port)];
    clients.iter_mut().for_each(|client| echo(client, 1, 10));
    let (code, why) = get(&helper, "/health");
    assert_eq!((code, why.as_str()), (503, "full: no new clients; 2 connected, max_connections = 2\n"));
    drop(clients);
    wait("room for clients", || get(&helper, "/health").0 == 200);
}

#[test]
fn a_metrics_address_in_use_is_an_error() {
    let other_program = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut service = Service::new("cache", "127.0.0.1:1".parse().unwrap());
    service.listen.push("127.0.0.1:0".parse().unwrap());
    let metrics = Some(other_program.local_addr().unwrap());
    let error = Helper::start(HelperConfig { metrics, ..HelperConfig::new(vec![service]) }).err();
    let error = error.expect("the helper should not start").to_string();
    assert!(error.contains("cannot serve metrics at") && error.contains("--metrics"), "{error}");
}

#[test]
fn scrapes_pass_promtool() {
    let server = EchoServer::start();
    let helper = start(server.address);
    wait("both links", || get(&helper, "/health").0 == 200);
    let path: PathBuf = std::env::temp_dir().join(format!("spillway-scrape-{}.txt", std::process::id()));
    fs::write(&path, get(&helper, "/metrics").1).unwrap();
    let command =
        format!("command -v promtool >/dev/null || exit 0; promtool check metrics < {}", path.display());
    let output = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
    fs::remove_file(&path).unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}
