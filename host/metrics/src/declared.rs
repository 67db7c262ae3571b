use crate::exposition::{Exposition, Family, Kind, Metric};

/// A metric, and the function that writes its samples from a snapshot of type `T`. A program has a list of its own
/// metrics, and serves [those of every process](crate::process::METRICS) as well.
#[derive(Debug)]
pub struct Declared<T> {
    metric: Metric,
    samples: fn(&T, &mut Family<'_>),
}

impl<T> Declared<T> {
    /// A counter: its value only rises.
    pub const fn counter(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
        samples: fn(&T, &mut Family<'_>),
    ) -> Declared<T> {
        Declared { metric: Metric { name, kind: Kind::Counter, help, labels }, samples }
    }

    /// A gauge: its value rises and falls.
    pub const fn gauge(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
        samples: fn(&T, &mut Family<'_>),
    ) -> Declared<T> {
        Declared { metric: Metric { name, kind: Kind::Gauge, help, labels }, samples }
    }

    /// A histogram.
    pub const fn histogram(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
        samples: fn(&T, &mut Family<'_>),
    ) -> Declared<T> {
        Declared { metric: Metric { name, kind: Kind::Histogram, help, labels }, samples }
    }

    /// The metrics of a list.
    pub const fn metrics<const N: usize>(all: &[Declared<T>; N]) -> [Metric; N] {
        let mut metrics = [Metric { name: "", kind: Kind::Gauge, help: "", labels: &[] }; N];
        let mut n = 0;
        while n < N {
            metrics[n] = all[n].metric;
            n += 1;
        }
        metrics
    }

    /// Writes all metrics of a list with their samples.
    pub fn write(all: &[Declared<T>], snapshot: &T, out: &mut Exposition) {
        for declared in all {
            (declared.samples)(snapshot, &mut out.family(&declared.metric));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_is_listed_and_written_with_its_samples() {
        const ALL: [Declared<u64>; 2] = [
            Declared::counter("a_total", &[], "As.", |n, family| family.count(&[], *n)),
            Declared::gauge("b", &["kind"], "Bs.", |n, family| family.count(&["x"], n + 1)),
        ];
        const METRICS: [Metric; 2] = Declared::metrics(&ALL);
        assert_eq!(
            METRICS.map(|metric| (metric.name, metric.kind)),
            [("a_total", Kind::Counter), ("b", Kind::Gauge)]
        );
        let mut out = Exposition::new();
        Declared::write(&ALL, &4, &mut out);
        let text = out.into_text();
        assert!(text.contains("a_total 4\n") && text.contains("b{kind=\"x\"} 5\n"), "{text}");
    }
}
