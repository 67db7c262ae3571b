//! Definitions of SLA, relief time and drain floor, computed from bins by intended send time.
//!
//! The generators' bins are 100 ms wide or a divisor of that. Requests that were never answered, or that could not be
//! sent, count as later than every latency.

use spillway_load::histogram::Histogram;
use spillway_load::report::Bin;

/// Resolution of relief times.
pub const GRID_MS: u64 = 100;
/// Relief begins with this many seconds in a row that keep the SLA.
const SECONDS_GOOD: u64 = 3;

/// Requests and latencies over a span of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Span {
    /// Requests due in the span.
    pub offered: u64,
    /// Correct replies to these requests, at any time.
    pub served: u64,
    /// Latencies of correct replies since the intended send time, in µs.
    pub latency_us: Histogram,
}

impl Span {
    /// Requests due within `from_ms..to_ms`.
    pub fn of(bins: &[Bin], from_ms: u64, to_ms: u64) -> Span {
        let mut span = Span::default();
        for bin in bins.iter().filter(|bin| (from_ms..to_ms).contains(&bin.at_ms)) {
            span.offered += bin.offered;
            for carried in [&bin.direct, &bin.helped] {
                span.served += carried.answered - carried.wrong;
                span.latency_us.merge(&carried.latency_us);
            }
        }
        span
    }

    /// The 99th percentile of all requests, unanswered ones included, in µs. `None` if it falls among unanswered
    /// requests, or without requests.
    pub fn p99_us(&self) -> Option<u64> {
        self.quantile_us(0.99)
    }

    /// A quantile of all requests in µs, with the rules of [`Span::p99_us`].
    pub fn quantile_us(&self, quantile: f64) -> Option<u64> {
        let total = self.offered.max(self.latency_us.count());
        match self.latency_us.quantile_of(quantile, total) {
            0 | u64::MAX => None,
            value => Some(value),
        }
    }

    /// Share of all requests with a correct reply within `sla_us`, 0 to 1.
    pub fn on_time_share(&self, sla_us: u64) -> f64 {
        let on_time = self.latency_us.count() - self.latency_us.count_above(sla_us);
        on_time as f64 / (self.offered.max(1) as f64)
    }

    /// Whether the SLA was kept: at least 99 % served, and a p99 of at most `sla_us`. `false` without requests.
    pub fn keeps(&self, sla_us: u64) -> bool {
        self.served as f64 >= 0.99 * self.offered as f64 && self.p99_us().is_some_and(|p99| p99 <= sla_us)
    }
}

/// Relief time in ms: from the decision to the earliest moment, on a grid of [`GRID_MS`] that begins at the decision,
/// from which [`SECONDS_GOOD`] seconds in a row each have a p99 within the SLA. `None` without such a moment before
/// `end_ms`.
///
/// `decision_ms` should be the start of a bin; otherwise each second begins with the first bin that starts after it.
pub fn relief_ms(bins: &[Bin], decision_ms: u64, end_ms: u64, sla_us: u64) -> Option<u64> {
    let is_good = |from_ms: u64| {
        (0..SECONDS_GOOD).all(|n| Span::of(bins, from_ms + n * 1000, from_ms + (n + 1) * 1000).keeps(sla_us))
    };
    let last_ms = end_ms.checked_sub(SECONDS_GOOD * 1000)?;
    (decision_ms..=last_ms)
        .step_by(GRID_MS as usize)
        .find(|&from_ms| is_good(from_ms))
        .map(|at_ms| at_ms - decision_ms)
}

/// Drain floor: the least time in which a backlog can drain, in ms. It is (B − C)·t ÷ (H − B) for a burst of B requests
/// a second that lasted t seconds before the decision, on a server that serves C without and H with a helper. 0 if the
/// server can serve the burst alone; `None` if it cannot serve it even with a helper.
pub fn drain_floor_ms(burst_per_s: f64, direct_per_s: f64, helped_per_s: f64, lasted_s: f64) -> Option<f64> {
    let backlog = ((burst_per_s - direct_per_s) * lasted_s).max(0.0);
    if backlog == 0.0 {
        return Some(0.0);
    }
    (helped_per_s > burst_per_s).then(|| 1000.0 * backlog / (helped_per_s - burst_per_s))
}

/// The SLA of a run in µs, fixed before it: the larger of 1 ms and three times the p99 at 20 % of the direct capacity.
pub fn sla_us(p99_at_fifth_us: u64) -> u64 {
    (3 * p99_at_fifth_us).max(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bin of 100 ms with 100 requests, `slow` of which took 50 ms and the others 0.4 ms.
    fn bin(at_ms: u64, slow: u64) -> Bin {
        let mut bin = Bin { at_ms, offered: 100, ..Bin::default() };
        bin.helped.answered = 100;
        bin.helped.latency_us.record(400, 100 - slow);
        bin.helped.latency_us.record(50_000, slow);
        bin
    }

    fn series(slow: impl Fn(u64) -> u64, seconds: u64) -> Vec<Bin> {
        (0..seconds * 10).map(|n| bin(n * 100, slow(n * 100))).collect()
    }

    #[test]
    fn unanswered_requests_count_as_late() {
        let mut bins = vec![bin(0, 0), bin(100, 0)];
        bins[1].offered = 102;
        let span = Span::of(&bins, 0, 1000);
        assert_eq!((span.offered, span.served, span.p99_us()), (202, 200, Some(400)));
        assert!(span.keeps(1000));
        bins[1].offered = 103;
        let span = Span::of(&bins, 0, 1000);
        assert_eq!(span.p99_us(), None, "3 of 203 unanswered are more than 1 %");
        assert!(!span.keeps(1000) && span.on_time_share(1000) < 0.99);
        assert_eq!(Span::of(&bins, 100, 100), Span::default());
        assert!(!Span::default().keeps(1000), "a span without requests should not keep an SLA");
    }

    #[test]
    fn wrong_replies_are_not_served() {
        let mut bins = vec![bin(0, 0)];
        bins[0].helped.wrong = 2;
        bins[0].helped.latency_us = Histogram::default();
        bins[0].helped.latency_us.record(400, 98);
        assert!(!Span::of(&bins, 0, 100).keeps(1000));
    }

    #[test]
    fn the_relief_time_ends_where_three_good_seconds_begin() {
        // Overload until 4.2 s; decided at 3.5 s.
        let bins = series(|at_ms| if at_ms < 4_200 { 100 } else { 0 }, 12);
        assert_eq!(relief_ms(&bins, 3_500, 12_000, 1000), Some(700));
        // One slow request in a hundred is within the p99 of its second.
        let bins = series(|at_ms| if at_ms < 4_200 { 100 } else { 1 }, 12);
        assert_eq!(relief_ms(&bins, 3_500, 12_000, 1000), Some(700));
        let bins = series(|at_ms| if at_ms < 4_200 { 100 } else { 2 }, 12);
        assert_eq!(relief_ms(&bins, 3_500, 12_000, 1000), None);
    }

    #[test]
    fn a_late_bin_delays_relief_only_if_its_second_misses_the_sla() {
        // 10 slow requests in one bin: 1 % of that second, which is within the p99.
        let bins = series(
            |at_ms| {
                if at_ms < 4_000 {
                    100
                } else if at_ms == 5_000 {
                    10
                } else {
                    0
                }
            },
            12,
        );
        assert_eq!(relief_ms(&bins, 4_000, 12_000, 1000), Some(0));
        // 11 are more than 1 %: every second that contains the bin is bad, so relief begins after it.
        let bins = series(
            |at_ms| {
                if at_ms < 4_000 {
                    100
                } else if at_ms == 5_000 {
                    11
                } else {
                    0
                }
            },
            12,
        );
        assert_eq!(relief_ms(&bins, 4_000, 12_000, 1000), Some(1_100));
    }

    #[test]
    fn relief_needs_three_seconds_before_the_end() {
        let bins = series(|_| 0, 6);
        assert_eq!(relief_ms(&bins, 3_000, 6_000, 1000), Some(0));
        assert_eq!(relief_ms(&bins, 3_100, 6_000, 1000), None);
        assert_eq!(relief_ms(&bins, 0, 2_000, 1000), None);
    }

    #[test]
    fn the_drain_floor_is_the_backlog_divided_by_the_spare_rate() {
        // 9,000/s on a server that serves 8,000/s: a backlog of 5,000 after 5 s. With a helper the server
        // serves 19,000/s, of which 10,000/s drain the backlog.
        assert_eq!(drain_floor_ms(9_000.0, 8_000.0, 19_000.0, 5.0), Some(500.0));
        assert_eq!(drain_floor_ms(7_000.0, 8_000.0, 7_500.0, 5.0), Some(0.0));
        assert_eq!(drain_floor_ms(9_000.0, 8_000.0, 9_000.0, 5.0), None);
    }

    #[test]
    fn the_sla_is_never_below_a_millisecond() {
        assert_eq!(sla_us(200), 1000);
        assert_eq!(sla_us(400), 1200);
    }
}
