//! The Grafana board and the alert rules can be loaded. They and the documentation name only metrics that exist.

#[path = "support/read.rs"]
mod read;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use spillway_helper::METRICS;
use spillway_metrics::{Kind, Metric, process};

#[test]
fn board_queries_only_existing_metrics() {
    let board = read::json(&read_file("packaging/grafana/spillway.json"));
    assert!(board["title"].is_string() && board["uid"].is_string() && board["schemaVersion"].is_number());
    let mut variables = vec!["__rate_interval"];
    for variable in board["templating"]["list"].as_array().unwrap() {
        variables.push(variable["name"].as_str().unwrap());
        if let Some(values) =
            variable["definition"].as_str().and_then(|definition| definition.strip_prefix("label_values("))
        {
            let (metric, label) = values.trim_end_matches(')').split_once(", ").unwrap();
            check_query(metric, "a variable");
            check_labels(&format!(" by ({label})"), "a variable");
        }
    }
    let panels = board["panels"].as_array().unwrap();
    let (mut ids, mut positions, mut queries) = (Vec::new(), Vec::new(), 0);
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        ids.push(panel["id"].as_u64().unwrap());
        let grid = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        let (x, y, w, h) = (grid("x"), grid("y"), grid("w"), grid("h"));
        assert!(x + w <= 24 && h > 0, "{title}");
        let overlaps = |&(other_x, other_y, other_w, other_h): &(u64, u64, u64, u64)| {
            x < other_x + other_w && other_x < x + w && y < other_y + other_h && other_y < y + h
        };
        assert!(!positions.iter().any(overlaps), "{title} should not overlap with another panel");
        positions.push((x, y, w, h));
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            check_query(query, title);
            for used in query.split('$').skip(1) {
                let end = used.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap();
                assert!(
                    variables.contains(&&used[..end]),
                    "{title}: no variable has the name {}",
                    &used[..end]
                );
            }
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            queries += 1;
        }
        assert!(!panel["fieldConfig"]["defaults"]["unit"].is_null(), "{title} should have a unit");
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "the ids of panels should differ");
    assert!(queries >= 12, "{count} panels should have at least 12 queries, not {queries}");
}

#[test]
fn alerts_query_only_existing_metrics_and_docs_explain_only_existing_alerts() {
    let rules = read::yaml(&read_file("packaging/prometheus/alerts.yml"));
    let mut names = Vec::new();
    assert_keys(&rules, &["groups"]);
    for group in rules["groups"].as_array().unwrap() {
        assert_keys(group, &["name", "rules"]);
        for rule in group["rules"].as_array().unwrap() {
            assert_keys(rule, &["alert", "annotations", "expr", "for", "labels"]);
            assert_keys(&rule["annotations"], &["description", "summary"]);
            assert_keys(&rule["labels"], &["severity"]);
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let (name, query) = (text(&rule["alert"]), text(&rule["expr"]));
            assert!(name.starts_with("Spillway") && !name.contains(' '), "{name}");
            check_query(&query, &name);
            let wait = text(&rule["for"]);
            let number = wait.strip_suffix(['s', 'm']).and_then(|number| number.parse::<u32>().ok());
            assert!(number.is_some(), "{name}: `for` should be a time in s or m, not {wait}");
            assert!(["critical", "warning"].contains(&&*text(&rule["labels"]["severity"])), "{name}");
            for key in ["summary", "description"] {
                check_template(&text(&rule["annotations"][key]), &query, &name);
            }
            assert!(!names.contains(&name), "{name} should appear once");
            names.push(name);
        }
    }
    assert!(names.len() >= 8, "{names:?}");
    for word in read_file("docs/monitoring.md").split('`').filter(|word| word.starts_with("Spillway")) {
        assert!(
            names.iter().any(|name| name == word),
            "docs/monitoring.md explains {word}, which is not an alert"
        );
    }
    promtool(&["check", "rules", "packaging/prometheus/alerts.yml"]);
}

#[test]
fn json_and_yaml_readers_refuse_ambiguous_texts() {
    assert_eq!(
        read::yaml("# a comment\na:\n  - b: 'it''s'\n    c: \"d\\\"\"\n"),
        read::json(r#"{"a":[{"b":"it's","c":"d\""}]}"#)
    );
    let assert_refused = |reads: fn(&str) -> Value, text: &'static str| {
        assert!(std::panic::catch_unwind(|| reads(text)).is_err(), "{text}");
    };
    for text in ["{\"a\":1,\"a\":1}", "{\"a\":{\"b\":1,\"b\":2}}", "[1,]", "{} {}"] {
        assert_refused(read::json, text);
    }
    for text in [
        "a: b\na: c",
        "a: b\n  c: d",
        "a:\n  b: c\n d: e",
        "a:\nb: c",
        "a: 'b",
        "a: 'b' c'",
        "a: \"b",
        "a: [b]",
        "a: {{ b }}",
        "a: b: c",
        "a: *b",
        "a:\tb",
        "a",
    ] {
        assert_refused(read::yaml, text);
    }
}

fn assert_keys(map: &Value, keys: &[&str]) {
    let found: Vec<&str> = map.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(found, keys);
}

/// Checks that the texts of an alert use only labels of the result of its query.
fn check_template(text: &str, query: &str, subject: &str) {
    assert!(!text.is_empty(), "{subject}");
    for rest in text.split("{{").skip(1) {
        let (inside, _) = rest.split_once("}}").unwrap_or_else(|| panic!("{subject}: {text}"));
        let label = inside.trim().strip_prefix("$labels.").unwrap_or_else(|| panic!("{subject}: {inside}"));
        // Of the labels that a query without `by` keeps, only Prometheus's `instance` is certain to exist.
        let is_kept = query.contains(" by (") || label == "instance";
        let is_listed = query.split(" by (").skip(1).all(|rest| {
            rest.split(')').next().is_some_and(|labels| labels.split(", ").any(|other| other == label))
        });
        assert!(is_kept && is_listed, "{subject}: {query} leaves no label {label}");
    }
}

#[test]
fn every_metric_is_documented() {
    let text = read_file("docs/monitoring.md");
    let mut known = metrics_by_name();
    for line in
        text.lines().filter(|line| line.starts_with("| `spillway_") || line.starts_with("| `process_"))
    {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, help] = cells[..] else { panic!("a row should have four columns: {line}") };
        let metric =
            known.remove(name.trim_matches('`')).unwrap_or_else(|| panic!("no metric has the name {name}"));
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

fn metrics_by_name() -> BTreeMap<&'static str, Metric> {
    METRICS.iter().chain(process::METRICS).map(|metric| (metric.name, *metric)).collect()
}

fn read_file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Checks that a query names only existing metrics, and has a rate for each counter.
fn check_query(query: &str, subject: &str) {
    let known = metrics_by_name();
    let mut found = 0;
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    for word in
        query.split(|c| !is_word(c)).filter(|word| word.contains("spillway_") || word.contains("process_"))
    {
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
        let is_histogram =
            of_histogram.is_some_and(|name| known.get(name).is_some_and(|m| m.kind == Kind::Histogram));
        let is_simple = known.get(word).is_some_and(|metric| metric.kind != Kind::Histogram);
        assert!(is_histogram || is_simple, "{subject}: no metric has the name {word}");
        let metric = known[if is_histogram { of_histogram.unwrap() } else { word }];
        if metric.kind == Kind::Counter {
            let has_rate =
                query.contains(&format!("rate({word}")) || query.contains(&format!("increase({word}"));
            assert!(has_rate, "{subject}: a counter needs rate or increase: {query}");
        }
        found += 1;
    }
    assert!(found > 0, "{subject}: {query}");
    for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
        assert_eq!(query.matches(open).count(), query.matches(close).count(), "{subject}: {query}");
    }
    check_labels(query, subject);
}

/// Checks that a query groups and selects only by existing labels.
fn check_labels(query: &str, subject: &str) {
    let known = metrics_by_name();
    let mut allowed: Vec<&str> = known.values().flat_map(|metric| metric.labels).copied().collect();
    allowed.extend(["le", "instance", "job"]);
    for list in query.split(" by (").skip(1).filter_map(|rest| rest.split(')').next()) {
        for label in list.split(',').map(str::trim) {
            assert!(allowed.contains(&label), "{subject}: no metric has a label {label}: {query}");
        }
    }
    for selector in query.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
        for label in selector.split(',').filter_map(|part| part.split(['=', '!']).next()).map(str::trim) {
            assert!(allowed.contains(&label), "{subject}: no metric has a label {label}: {query}");
        }
    }
}

/// Runs `promtool`, if it is installed.
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
