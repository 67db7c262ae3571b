//! Metrics, status and health of a running helper over HTTP; and that board, alerts and documentation name only
//! metrics that there are.

#[path = "../../../host/metrics/tests/support/strict.rs"]
mod strict;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use spillway_helper::{Helper, HelperConfig, HelperStatus, METRICS, Service};
use spillway_metrics::{Kind, Metric, process};
use support::{EchoServer, connect, echo, helper_key, wait};

fn start(server: SocketAddr) -> Helper {
    let service = Service {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        keys: vec![helper_key()],
        ..Service::new("cache \"quoted\\\"", server)
    };
    let metrics = Some("127.0.0.1:0".parse().unwrap());
    Helper::start(HelperConfig { threads: 2, metrics, ..HelperConfig::new(vec![service]) }).expect("a helper")
}

fn get(helper: &Helper, path: &str) -> (u16, String) {
    let mut stream = connect(helper.metrics_address().expect("it serves metrics"));
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}

#[test]
fn a_working_helper_tells_everything() {
    let server = EchoServer::start();
    let helper = start(server.address);
    wait("both links", || get(&helper, "/health").0 == 200);
    let port = helper.status().services[0].listen[0];
    let mut clients: Vec<_> = (0..6).map(|_| connect(port)).collect();
    for (seed, client) in clients.iter_mut().enumerate() {
        (0..5).for_each(|round| echo(client, seed * 10 + round, 1000));
    }
    let told = strict::read(&get(&helper, "/metrics").1);
    for metric in METRICS.iter().chain(process::METRICS) {
        let is = told.get(metric.name).unwrap_or_else(|| panic!("{} is told", metric.name));
        assert_eq!((is.kind.as_str(), !is.samples.is_empty()), (metric.kind.name(), true), "{}", metric.name);
    }
    assert_eq!(told.len(), METRICS.len() + process::METRICS.len(), "all are in the registry");
    let sum = |name: &str, labels: &[(&str, &str)]| told[name].sum(labels);
    let service = ("service", "cache \"quoted\\\"");
    assert_eq!(sum("spillway_helper_request_bytes_total", &[service]), 30_000.0);
    assert_eq!(sum("spillway_helper_reply_bytes_total", &[service]), 30_000.0);
    assert!(sum("spillway_helper_request_segments_total", &[service]) >= 30.0);
    assert_eq!(sum("spillway_helper_clients", &[service, ("kind", "raw")]), 6.0);
    assert_eq!(sum("spillway_helper_clients_accepted_total", &[("kind", "raw")]), 6.0);
    assert_eq!(sum("spillway_helper_links", &[("state", "up")]), 2.0);
    assert_eq!(sum("spillway_helper_links_established_total", &[("context", "1")]), 1.0);
    assert!(sum("spillway_helper_context_cpu_seconds_total", &[]) > 0.0);
    let reasons = told["spillway_helper_clients_refused_total"].samples.iter();
    let reasons: BTreeSet<&str> = reasons.map(|(_, labels, _)| &*labels.last().unwrap().1).collect();
    assert_eq!(reasons.len(), 14, "{reasons:?}");
    let samples = &told["spillway_helper_batch_delay_seconds"].samples;
    let count = samples.iter().find(|(name, _, _)| name.ends_with("_count")).unwrap().2;
    assert_eq!(count, sum("spillway_helper_batches_sent_total", &[]));

    let status: HelperStatus = serde_json::from_str(&get(&helper, "/status").1).expect("JSON");
    assert_eq!((status.clients, status.services[0].request_bytes), (6, 30_000));
    assert!(
        status.services[0].refused.by_reason.keys().map(String::as_str).eq(reasons),
        "the same by both ways"
    );
    assert_eq!(status.contexts.len(), 2);
    let (code, page) = get(&helper, "/");
    assert_eq!(code, 200);
    assert!(
        page.contains("cache &quot;quoted") && page.contains("2 of 2") && page.contains("healthy"),
        "{page}"
    );
    assert_eq!(get(&helper, "/no").0, 404);

    drop(server);
    wait("unhealthy", || get(&helper, "/health").0 == 503);
    assert!(get(&helper, "/health").1.contains("links to"));
    let told = strict::read(&get(&helper, "/metrics").1);
    assert_eq!(told["spillway_helper_clients_reset_total"].sum(&[("reason", "link_lost")]), 6.0);
    assert!(told["spillway_helper_link_failures_total"].sum(&[]) >= 2.0);
}

#[test]
fn a_draining_helper_is_not_healthy() {
    let server = EchoServer::start();
    let helper = start(server.address);
    wait("both links", || get(&helper, "/health").0 == 200);
    let port = helper.status().services[0].listen[0];
    let mut client = connect(port);
    echo(&mut client, 1, 10);
    helper.drain(std::time::Duration::from_secs(60));
    wait("draining", || get(&helper, "/health").0 == 503);
    assert!(get(&helper, "/health").1.contains("draining"));
    assert_eq!(strict::read(&get(&helper, "/metrics").1)["spillway_helper_draining"].sum(&[]), 1.0);
}

#[test]
fn a_taken_address_is_said() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut service = Service::new("cache", "127.0.0.1:1".parse().unwrap());
    service.listen.push("127.0.0.1:0".parse().unwrap());
    let metrics = Some(taken.local_addr().unwrap());
    let error = Helper::start(HelperConfig { metrics, ..HelperConfig::new(vec![service]) }).err();
    let error = error.expect("it does not start").to_string();
    assert!(error.contains("cannot serve metrics at") && error.contains("--metrics"), "{error}");
}

fn registry() -> BTreeMap<&'static str, Metric> {
    METRICS.iter().chain(process::METRICS).map(|metric| (metric.name, *metric)).collect()
}

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names of metrics in a query: words that are followed by labels, a range or nothing, and that are no keywords.
fn check_query(query: &str, place: &str) {
    let known = registry();
    let mut found = 0;
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    for word in
        query.split(|c| !is_word(c)).filter(|word| word.contains("spillway_") || word.contains("process_"))
    {
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
        let is_histogram =
            of_histogram.is_some_and(|name| known.get(name).is_some_and(|m| m.kind == Kind::Histogram));
        let plain = known.get(word).is_some_and(|metric| metric.kind != Kind::Histogram);
        assert!(is_histogram || plain, "{place}: there is no {word}");
        let metric = known[if is_histogram { of_histogram.unwrap() } else { word }];
        if metric.kind == Kind::Counter {
            let ranged =
                query.contains(&format!("rate({word}")) || query.contains(&format!("increase({word}"));
            assert!(ranged, "{place}: a counter is only good as a rate: {query}");
        }
        found += 1;
    }
    assert!(found > 0, "{place}: {query}");
    for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
        assert_eq!(query.matches(open).count(), query.matches(close).count(), "{place}: {query}");
    }
    check_labels(query, place);
}

/// Labels that a query groups or selects by are there.
fn check_labels(query: &str, place: &str) {
    let known = registry();
    let mut allowed: Vec<&str> = known.values().flat_map(|metric| metric.labels).copied().collect();
    allowed.extend(["le", "instance", "job"]);
    for list in query.split(" by (").skip(1).filter_map(|rest| rest.split(')').next()) {
        for label in list.split(',').map(str::trim) {
            assert!(allowed.contains(&label), "{place}: no metric has a label {label}: {query}");
        }
    }
    for selector in query.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
        for label in selector.split(',').filter_map(|part| part.split(['=', '!']).next()).map(str::trim) {
            assert!(allowed.contains(&label), "{place}: no metric has a label {label}: {query}");
        }
    }
}

#[test]
fn the_board_asks_only_for_what_there_is() {
    let board: serde_json::Value =
        serde_json::from_str(&file("packaging/grafana/spillway.json")).expect("JSON");
    assert!(board["title"].is_string() && board["uid"].is_string() && board["schemaVersion"].is_number());
    let panels = board["panels"].as_array().expect("panels");
    let (mut ids, mut places, mut queries) = (Vec::new(), Vec::new(), 0);
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        ids.push(panel["id"].as_u64().expect("an id"));
        let at = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
        let (x, y, w, h) = (at("x"), at("y"), at("w"), at("h"));
        assert!(x + w <= 24 && h > 0, "{title}");
        let overlaps =
            |&(x1, y1, w1, h1): &(u64, u64, u64, u64)| x < x1 + w1 && x1 < x + w && y < y1 + h1 && y1 < y + h;
        assert!(!places.iter().any(overlaps), "{title} lies on another panel");
        places.push((x, y, w, h));
        for target in panel["targets"].as_array().expect("targets") {
            check_query(target["expr"].as_str().expect("a query"), title);
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            queries += 1;
        }
        assert!(!panel["fieldConfig"]["defaults"]["unit"].is_null(), "{title} has a unit");
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert!(ids.len() == count && queries >= 12, "{count} panels with {queries} queries");
}

#[test]
fn alerts_ask_only_for_what_there_is() {
    let text = file("packaging/prometheus/alerts.yml");
    let mut alerts = 0;
    for block in text.split("      - alert: ").skip(1) {
        let name = block.lines().next().unwrap();
        assert!(name.starts_with("Spillway") && !name.contains(' '), "{name}");
        let value = |key: &str| {
            let line = block.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{key}: ")));
            line.unwrap_or_else(|| panic!("{name} has {key}"))
        };
        check_query(value("expr").trim_matches('\''), name);
        assert!(value("for").ends_with(['s', 'm']), "{name}");
        assert!(["critical", "warning"].contains(&value("severity")), "{name}");
        assert!(!value("summary").is_empty() && !value("description").is_empty(), "{name}");
        alerts += 1;
    }
    assert!(alerts >= 8, "{alerts}");
    promtool(&["check", "rules", "packaging/prometheus/alerts.yml"]);
}

/// Prometheus' own check, where its package is installed.
fn promtool(arguments: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    match std::process::Command::new("promtool").args(arguments).current_dir(root).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "promtool: {text}");
        }
        Err(error) => println!("skipped: promtool does not run here ({error}); it is in Debian's prometheus"),
    }
}

#[test]
fn every_metric_is_documented() {
    let text = file("docs/monitoring.md");
    let mut known = registry();
    for line in
        text.lines().filter(|line| line.starts_with("| `spillway_") || line.starts_with("| `process_"))
    {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, help] = cells[..] else { panic!("four columns: {line}") };
        let metric = known.remove(name.trim_matches('`')).unwrap_or_else(|| panic!("there is no {name}"));
        assert_eq!(
            (kind, labels, help),
            (metric.kind.name(), &*metric.labels.join(", "), metric.help),
            "{name}"
        );
    }
    let rows: Vec<String> = known.values().map(row).collect();
    assert!(rows.is_empty(), "docs/monitoring.md has no rows for these:\n{}", rows.join("\n"));
}

fn row(metric: &Metric) -> String {
    format!("| `{}` | {} | {} | {} |", metric.name, metric.kind.name(), metric.labels.join(", "), metric.help)
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
    let output = std::process::Command::new("sh").args(["-c", &command]).output().expect("a shell");
    fs::remove_file(&path).unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}
