//! A strict parser of Prometheus' text format, for texts that every scraper must accept.
#![allow(dead_code)] // Each test program uses a part of it.

use std::collections::{BTreeMap, BTreeSet};

pub type Labels = Vec<(String, String)>;

/// One parsed metric.
#[derive(Debug, Default)]
pub struct Told {
    pub kind: String,
    pub help: String,
    /// (Name with suffix, labels in their order, value).
    pub samples: Vec<(String, Labels, f64)>,
}

impl Told {
    /// The sum of all samples with these labels.
    pub fn sum(&self, labels: &[(&str, &str)]) -> f64 {
        let has = |all: &[(String, String)]| {
            labels.iter().all(|(name, value)| all.iter().any(|(n, v)| n == name && v == value))
        };
        self.samples.iter().filter(|(_, all, _)| has(all)).map(|(_, _, value)| value).sum()
    }
}

/// Parses an exposition. Panics on any violation of the format.
pub fn read(text: &str) -> BTreeMap<String, Told> {
    assert!(text.ends_with('\n'), "the last line has no line feed");
    let mut all: BTreeMap<String, Told> = BTreeMap::new();
    let (mut seen, mut current) = (BTreeSet::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect(line);
            is_name(name, true);
            let told = Told { help: help.to_owned(), ..Told::default() };
            assert!(all.insert(name.to_owned(), told).is_none(), "metric appears twice: {line}");
            current = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert_eq!(name, current, "HELP comes before TYPE");
            let told = all.get_mut(name).expect("just begun");
            assert!(told.kind.is_empty() && told.samples.is_empty(), "{line}");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            told.kind = kind.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').expect(line);
            let (name, labels) = labels(series);
            is_name(&name, true);
            let told = all.get_mut(&current).expect("a metric has begun");
            let family = match told.kind.as_str() {
                "histogram" => ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)),
                _ => Some(name.as_str()),
            };
            assert_eq!(family, Some(current.as_str()), "samples of a metric follow it: {line}");
            assert!(seen.insert(series.to_owned()), "one series twice: {line}");
            let value = if value == "+Inf" { f64::INFINITY } else { value.parse().expect(line) };
            assert!(value >= 0.0, "{line}");
            told.samples.push((name, labels, value));
        }
    }
    all.iter().for_each(|(name, told)| conventions(name, told));
    all
}

fn is_name(name: &str, colons: bool) {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || colons && c == ':';
    assert!(name.starts_with(first), "{name}");
    assert!(name.chars().all(|c| first(c) || c.is_ascii_digit()), "{name}");
}

fn labels(series: &str) -> (String, Labels) {
    let Some((name, rest)) = series.split_once('{') else { return (series.to_owned(), Vec::new()) };
    let mut rest = rest.strip_suffix('}').expect(series);
    let mut labels = Vec::new();
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").expect(series);
        is_name(label, false);
        assert!(labels.iter().all(|(other, _)| other != label), "{series}");
        let (mut value, mut end, mut escaped) = (String::new(), None, false);
        for (at, c) in after.char_indices() {
            match (escaped, c) {
                (true, 'n') => value.push('\n'),
                (true, '\\' | '"') => value.push(c),
                (true, _) => panic!("unknown escape: {series}"),
                (false, '\\') => {}
                (false, '"') => {
                    end = Some(at);
                    break;
                }
                (false, c) => value.push(c),
            }
            escaped = !escaped && c == '\\';
        }
        labels.push((label.to_owned(), value));
        rest = &after[end.expect(series) + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    (name.to_owned(), labels)
}

/// Rules of `promtool check metrics`.
fn conventions(name: &str, told: &Told) {
    assert!(!told.kind.is_empty() && !told.help.is_empty(), "{name} is described");
    assert_eq!(told.kind == "counter", name.ends_with("_total"), "{name}: counters end in _total");
    for unit in ["milliseconds", "_ms", "_us", "minutes", "kilobytes", "_kb", "percent"] {
        assert!(!name.contains(unit), "{name}: base units");
    }
    if told.kind == "histogram" {
        histogram(name, told);
    }
}

/// Buckets rise, end with +Inf, and agree with the count.
fn histogram(name: &str, told: &Told) {
    type Sample<'a> = (&'a str, Option<f64>, f64);
    let mut by_labels: BTreeMap<Labels, Vec<Sample<'_>>> = BTreeMap::new();
    for (sample, labels, value) in &told.samples {
        let (bounds, rest): (Vec<_>, Vec<_>) = labels.iter().cloned().partition(|(name, _)| name == "le");
        let bound = bounds.first().map(|(_, text)| match text.as_str() {
            "+Inf" => f64::INFINITY,
            text => text.parse().expect(text),
        });
        by_labels.entry(rest).or_default().push((sample, bound, *value));
    }
    for samples in by_labels.values() {
        let buckets: Vec<_> =
            samples.iter().filter_map(|(_, bound, value)| bound.zip(Some(*value))).collect();
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name}: {buckets:?}");
        let last = buckets.last().expect("buckets");
        assert_eq!(last.0, f64::INFINITY, "{name}");
        let of = |end: &str| samples.iter().find(|(sample, _, _)| sample.ends_with(end)).expect(end).2;
        assert_eq!((of("_count"), samples.len()), (last.1, buckets.len() + 2), "{name}");
        assert!(of("_sum") >= 0.0);
    }
}
