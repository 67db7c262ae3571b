//! A measurement at a fixed rate.

use spillway_load::histogram::Histogram;
use spillway_load::report::Bin;

use super::usage::Used;
use crate::relief::Span;
use crate::table::milliseconds;

/// A measurement at a fixed rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// The ordered rate, in requests a second.
    pub rate_per_s: f64,
    /// Requests and latencies.
    pub span: Span,
    /// p99 of the clients' own lag, in µs.
    pub lag_p99_us: u64,
    /// CPU use.
    pub used: Used,
    /// Replies received per second during the step, including replies to requests from before the step.
    pub replies_per_s: f64,
}

impl Step {
    /// Makes a step from its bins, its CPU use, and the number of replies received during the step.
    pub fn new(rate_per_s: f64, bins: &[Bin], used: Used, replies: u64) -> Step {
        let mut lag = Histogram::default();
        bins.iter().for_each(|bin| lag.merge(&bin.lag_us));
        let replies_per_s = if used.seconds > 0.0 { replies as f64 / used.seconds } else { 0.0 };
        Step {
            rate_per_s,
            span: Span::of(bins, 0, u64::MAX),
            lag_p99_us: lag.quantile_us(0.99),
            used,
            replies_per_s,
        }
    }

    /// All figures in one line.
    pub fn summary(&self, sla_us: u64) -> String {
        let (span, used) = (&self.span, &self.used);
        let latency = |q: f64| milliseconds(span.quantile_us(q), "unanswered");
        let costs: Vec<String> = [
            ("server", used.server_s()),
            ("its interface", used.server_interface_s),
            ("helper", used.helper_s),
            ("clients", used.clients_s),
            ("bridge", used.bridge_s),
            ("others", used.others_s),
        ]
        .map(|(name, seconds)| format!("{name} {:.1} %", used.percent(seconds)))
        .into();
        format!(
            "{:>8.0}/s: {:6.2} % on time, p50 {}, p99 {}, p99.9 {}, {:.0} replies/s; {}; throttled {:.0}/s; lag {} µs; \
             stolen {:.0} ms, stalled {:.1} ms; {:.1} messages a batch",
            self.rate_per_s,
            100.0 * span.on_time_share(sla_us),
            latency(0.5),
            latency(0.99),
            latency(0.999),
            self.replies_per_s,
            costs.join(", "),
            if used.seconds > 0.0 { used.throttled as f64 / used.seconds } else { 0.0 },
            self.lag_p99_us,
            used.stolen_s * 1000.0,
            used.stalled_s * 1000.0,
            used.messages_per_batch().unwrap_or(0.0)
        )
    }
}
