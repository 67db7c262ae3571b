//! A strict parser of Prometheus' text format, for texts that every scraper must accept.
#![allow(dead_code)] // Each test program uses a part of it.

use std::collections::{BTreeMap, BTreeSet};

pub type Labels = Vec<(String, String)>;

#[derive(Debug, Default)]
pub struct Family {
    pub kind: String,
    pub help: String,
    /// (Name with suffix, labels in their order, value).
    pub samples: Vec<(String, Labels, f64)>,
}

impl Family {
    /// The sum of all samples with these labels.
    pub fn sum(&self, labels: &[(&str, &str)]) -> f64 {
        let has = |sample_labels: &[(String, String)]| {
            labels.iter().all(|(name, value)| sample_labels.iter().any(|(n, v)| n == name && v == value))
        };
        self.samples.iter().filter(|(_, all, _)| has(all)).map(|(_, _, value)| value).sum()
    }
}

/// Parses an exposition. Panics on any violation of the format.
pub fn read(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'), "the last line should end with a line feed");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let (mut seen_series, mut current) = (BTreeSet::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect(line);
            check_name(name, true);
            let family = Family { help: help.to_owned(), ..Family::default() };
            assert!(
                families.insert(name.to_owned(), family).is_none(),
                "a metric should appear once: {line}"
            );
            current = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert_eq!(name, current, "HELP should precede TYPE");
            let family = families.get_mut(name).expect("TYPE should follow the HELP of its metric");
            assert!(
                family.kind.is_empty() && family.samples.is_empty(),
                "TYPE should appear once, before the samples: {line}"
            );
            assert!(["counter", "gauge", "histogram"].contains(&kind), "the type should be known: {line}");
            family.kind = kind.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').expect(line);
            let (name, labels) = parse_series(series);
            check_name(&name, true);
            let family = families.get_mut(&current).expect("samples should follow HELP and TYPE");
            let base_name = match family.kind.as_str() {
                "histogram" => ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)),
                _ => Some(name.as_str()),
            };
            assert_eq!(base_name, Some(current.as_str()), "a sample should follow its metric: {line}");
            assert!(seen_series.insert(series.to_owned()), "a series should appear once: {line}");
            let value = if value == "+Inf" { f64::INFINITY } else { value.parse().expect(line) };
            assert!(value >= 0.0, "values should not be negative: {line}");
            family.samples.push((name, labels, value));
        }
    }
    families.iter().for_each(|(name, family)| check_conventions(name, family));
    families
}

fn check_name(name: &str, allow_colons: bool) {
    let may_begin = |c: char| c.is_ascii_alphabetic() || c == '_' || allow_colons && c == ':';
    let is_valid = name.starts_with(may_begin) && name.chars().all(|c| may_begin(c) || c.is_ascii_digit());
    assert!(is_valid, "{name:?} should be a valid name");
}

fn parse_series(series: &str) -> (String, Labels) {
    let Some((name, rest)) = series.split_once('{') else { return (series.to_owned(), Vec::new()) };
    let mut rest = rest.strip_suffix('}').expect(series);
    let mut labels = Vec::new();
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").expect(series);
        check_name(label, false);
        assert!(labels.iter().all(|(other, _)| other != label), "a label should appear once: {series}");
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

/// Checks the rules of `promtool check metrics`.
fn check_conventions(name: &str, family: &Family) {
    assert!(!family.kind.is_empty() && !family.help.is_empty(), "{name} should have a type and a help text");
    assert_eq!(family.kind == "counter", name.ends_with("_total"), "{name}: counters should end in _total");
    for unit in ["milliseconds", "_ms", "_us", "minutes", "kilobytes", "_kb", "percent"] {
        assert!(!name.contains(unit), "{name}: units should be base units");
    }
    if family.kind == "histogram" {
        check_histogram(name, family);
    }
}

/// Checks that bounds and counts of the buckets rise, that the last bound is +Inf, and that its count is `_count`.
fn check_histogram(name: &str, family: &Family) {
    type Sample<'a> = (&'a str, Option<f64>, f64);
    let mut by_labels: BTreeMap<Labels, Vec<Sample<'_>>> = BTreeMap::new();
    for (sample, labels, value) in &family.samples {
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
        assert!(
            buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1),
            "{name}: bounds and counts should rise: {buckets:?}"
        );
        let last = buckets.last().unwrap();
        assert_eq!(last.0, f64::INFINITY, "{name}: the last bound should be +Inf");
        let value_of = |end: &str| samples.iter().find(|(sample, _, _)| sample.ends_with(end)).expect(end).2;
        assert_eq!(
            (value_of("_count"), samples.len()),
            (last.1, buckets.len() + 2),
            "{name}: `_count` should be the last count"
        );
        assert!(value_of("_sum") >= 0.0);
    }
}
