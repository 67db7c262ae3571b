//! Prometheus' text format, version 0.0.4.
//!
//! This is not a client library's registry, because the figures are snapshots that network threads return on request,
//! not counters in a registry. Every scraper and `promtool` reads this version of the format.

use std::fmt::Write as _;

/// Content type of this format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises, until a restart. The metric's name ends in `_total`.
    Counter,
    /// Rises and falls.
    Gauge,
    /// A distribution in buckets.
    Histogram,
}

impl Kind {
    /// The kind's name in the format.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// Description of one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name with its unit last: `_seconds`, `_bytes`, and `_total` after it for counters.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// Help text: one sentence.
    pub help: &'static str,
    /// Names of the labels.
    pub labels: &'static [&'static str],
}

impl Metric {
    /// A counter: its value only rises.
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
        Metric { name, kind: Kind::Counter, help, labels }
    }

    /// A gauge: its value rises and falls.
    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
        Metric { name, kind: Kind::Gauge, help, labels }
    }

    /// A histogram.
    pub const fn histogram(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Metric {
        Metric { name, kind: Kind::Histogram, help, labels }
    }
}

/// The text of a response to a scraper, written metric by metric.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// An empty text.
    pub fn new() -> Exposition {
        Exposition::default()
    }

    /// Begins a metric. Write all its samples to the result, because the format requires a metric's samples together.
    pub fn family(&mut self, metric: &Metric) -> Family<'_> {
        let (name, kind) = (metric.name, metric.kind.name());
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {}", escaped(metric.help, false));
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
        Family { text: &mut self.text, metric: *metric }
    }

    /// Replaces the text written so far by the result of `rewrite`.
    pub fn rewrite(&mut self, rewrite: impl FnOnce(&str) -> String) {
        self.text = rewrite(&self.text);
    }

    /// The complete text.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// Writer for the samples of one metric.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    metric: Metric,
}

impl Family<'_> {
    /// Writes one sample, with the labels' values in the metric's order.
    pub fn sample(&mut self, values: &[&str], value: f64) {
        self.line("", values, None, value);
    }

    /// Writes a counter's sample. Values beyond 2^53 lose their last digits, as in Prometheus.
    pub fn count(&mut self, values: &[&str], count: u64) {
        self.sample(values, count as f64);
    }

    /// Writes a histogram: the buckets' upper bounds, the count of each bucket and of values beyond the last bound, and
    /// the sum of all values.
    pub fn histogram(
        &mut self,
        values: &[&str],
        bounds: impl Iterator<Item = f64>,
        counts: &[u64],
        sum: f64,
    ) {
        let mut cumulative = 0;
        let bounds = bounds.chain([f64::INFINITY]);
        for (bound, count) in bounds.zip(counts) {
            cumulative += count;
            self.line("_bucket", values, Some(bound), cumulative as f64);
        }
        self.line("_sum", values, None, sum);
        self.line("_count", values, None, cumulative as f64);
    }

    fn line(&mut self, suffix: &str, values: &[&str], bound: Option<f64>, value: f64) {
        debug_assert_eq!(
            values.len(),
            self.metric.labels.len(),
            "each label of {} should have a value",
            self.metric.name
        );
        let labels = self.metric.labels.iter().zip(values);
        let mut labels: Vec<String> =
            labels.map(|(name, value)| format!("{name}=\"{}\"", escaped(value, true))).collect();
        labels.extend(bound.map(|bound| format!("le=\"{}\"", number(bound))));
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{}{suffix}{labels} {}", self.metric.name, number(value));
    }
}

fn number(value: f64) -> String {
    if value == f64::INFINITY {
        "+Inf".to_owned()
    } else if value == f64::NEG_INFINITY {
        "-Inf".to_owned()
    } else {
        value.to_string()
    }
}

fn escaped(text: &str, escape_quotes: bool) -> String {
    let escaped = text.replace('\\', "\\\\").replace('\n', "\\n");
    if escape_quotes { escaped.replace('"', "\\\"") } else { escaped }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_labels_and_histograms_follow_the_text_format() {
        let count =
            Metric { name: "a_total", kind: Kind::Counter, help: "As \\ many\n.", labels: &["x", "y"] };
        let delay = Metric { name: "d_seconds", kind: Kind::Histogram, help: "Delay.", labels: &[] };
        let mut exposition = Exposition::new();
        let mut family = exposition.family(&count);
        family.count(&["quote \" slash \\ end \n", ""], 3);
        family.count(&["b", "c"], 0);
        exposition.family(&delay).histogram(&[], [0.00005, 1.0].into_iter(), &[2, 0, 1], 2.5);
        let expected = r#"# HELP a_total As \\ many\n.
# TYPE a_total counter
a_total{x="quote \" slash \\ end \n",y=""} 3
a_total{x="b",y="c"} 0
# HELP d_seconds Delay.
# TYPE d_seconds histogram
d_seconds_bucket{le="0.00005"} 2
d_seconds_bucket{le="1"} 2
d_seconds_bucket{le="+Inf"} 3
d_seconds_sum 2.5
d_seconds_count 3
"#;
        assert_eq!(exposition.into_text(), expected);
    }
}
