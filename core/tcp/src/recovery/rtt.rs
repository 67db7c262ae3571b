//! Round-trip times and the retransmission timeout (RFC 6298).

use core::time::Duration;

/// Bound of a measured round trip: 73 minutes.
const SAMPLE_NS_MAX: u64 = 1 << 42;

/// The minimum of the timeout after a retransmitted SYN, until a round trip is measured (RFC 6298 §5.7).
const AFTER_SYN_TIMEOUT_NS: u64 = 3_000_000_000;

/// Estimates of the path's round-trip time, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rtt {
    /// Zero until the first sample.
    smoothed_ns: u64,
    variation_ns: u64,
    smallest_ns: u64,
    /// The retransmission timeout without backoff.
    rto_ns: u64,
    rto_ns_min: u64,
    rto_ns_max: u64,
}

/// A duration in nanoseconds, bounded.
pub(super) fn nanos(duration: Duration) -> u64 {
    const SECS_MAX: u64 = SAMPLE_NS_MAX / 1_000_000_000;
    if duration.as_secs() >= SECS_MAX {
        return SAMPLE_NS_MAX;
    }
    duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos())
}

impl Rtt {
    pub(super) fn new(initial: Duration, min: Duration, max: Duration) -> Rtt {
        let rto_ns_max = nanos(max).max(1);
        Rtt {
            smoothed_ns: 0,
            variation_ns: 0,
            smallest_ns: u64::MAX,
            rto_ns: nanos(initial).clamp(1, rto_ns_max),
            rto_ns_min: nanos(min),
            rto_ns_max,
        }
    }

    /// Adds a measured round trip. Segments sent twice are measured only by timestamps (Karn; RFC 6298 §3).
    pub(super) fn sample(&mut self, rtt_ns: u64) {
        let rtt_ns = rtt_ns.clamp(1, SAMPLE_NS_MAX);
        self.smallest_ns = self.smallest_ns.min(rtt_ns);
        if self.smoothed_ns == 0 {
            (self.smoothed_ns, self.variation_ns) = (rtt_ns, rtt_ns / 2);
        } else {
            let difference = self.smoothed_ns.abs_diff(rtt_ns);
            self.variation_ns = (3 * self.variation_ns + difference) / 4;
            self.smoothed_ns = ((7 * self.smoothed_ns + rtt_ns) / 8).max(1);
        }
        self.update_rto();
    }

    /// Computes the timeout. As in Linux, the minimum bounds the term of the variation, not the whole timeout: a long
    /// path without variation gets slack as well, because a peer may delay its acknowledgements on any path.
    fn update_rto(&mut self) {
        let slack_ns = (4 * self.variation_ns).max(self.rto_ns_min);
        self.rto_ns = (self.smoothed_ns + slack_ns).clamp(1, self.rto_ns_max);
    }

    /// Raises the timeout after a retransmitted SYN, whose round trip is unknown (RFC 6298 §5.7).
    pub(super) fn raise_after_syn_timeout(&mut self) {
        if self.smoothed_ns == 0 {
            self.rto_ns = self.rto_ns.max(AFTER_SYN_TIMEOUT_NS).min(self.rto_ns_max);
        }
    }

    /// The timeout after `backoffs` timeouts, each twice the one before (RFC 6298 §5.5), in nanoseconds.
    pub(super) fn rto_ns(&self, backoffs: u32) -> u64 {
        if backoffs == 0 {
            return self.rto_ns;
        }
        self.rto_ns.saturating_mul(1_u64 << backoffs.min(32)).min(self.rto_ns_max)
    }

    /// Zero until the first sample.
    pub(super) fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// `None` until the first sample.
    pub(super) fn smoothed(&self) -> Option<Duration> {
        (self.smoothed_ns > 0).then(|| Duration::from_nanos(self.smoothed_ns))
    }

    pub(super) fn variation(&self) -> Duration {
        Duration::from_nanos(self.variation_ns)
    }

    /// `None` until the first sample.
    pub(super) fn smallest(&self) -> Option<Duration> {
        (self.smallest_ns < u64::MAX).then(|| Duration::from_nanos(self.smallest_ns))
    }

    pub(super) fn restore(&mut self, smoothed_ns: u64, variation_ns: u64, smallest_ns: u64) {
        if smoothed_ns > 0 {
            self.smoothed_ns = smoothed_ns.min(SAMPLE_NS_MAX);
            self.variation_ns = variation_ns.min(SAMPLE_NS_MAX);
            self.smallest_ns = smallest_ns.clamp(1, self.smoothed_ns);
            self.update_rto();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn rtt() -> Rtt {
        Rtt::new(Duration::from_secs(1), Duration::from_millis(200), Duration::from_secs(60))
    }

    #[test]
    fn before_any_sample_the_timeout_is_the_initial_one() {
        assert_eq!((rtt().rto_ns(0), rtt().smoothed()), (1000 * MS, None));
    }

    #[test]
    fn the_first_sample_sets_the_estimate() {
        let mut rtt = rtt();
        rtt.sample(300 * MS);
        assert_eq!(
            (rtt.smoothed_ns, rtt.variation_ns),
            (300 * MS, 150 * MS),
            "the first sample should be the estimate, and half of it the variation (RFC 6298 §2.2)"
        );
        assert_eq!(rtt.rto_ns(0), 900 * MS);
    }

    #[test]
    fn later_samples_are_averaged() {
        let mut rtt = rtt();
        rtt.sample(300 * MS);
        rtt.sample(380 * MS);
        assert_eq!(
            (rtt.smoothed_ns, rtt.variation_ns),
            (310 * MS, 132_500_000),
            "a later sample should count 1/8 of the estimate and 1/4 of the variation (RFC 6298 §2.3)"
        );
        rtt.sample(310 * MS);
        assert_eq!((rtt.smoothed_ns, rtt.variation_ns), (310 * MS, 99_375_000));
        assert_eq!(rtt.smallest(), Some(Duration::from_millis(300)));
    }

    #[test]
    fn on_a_steady_path_the_timeout_keeps_its_minimum_slack() {
        let mut rtt = rtt();
        (0..100).for_each(|_| rtt.sample(500 * MS));
        assert_eq!(rtt.rto_ns(0), 700 * MS);
        (0..200).for_each(|_| rtt.sample(MS / 10));
        assert!(
            (200 * MS..205 * MS).contains(&rtt.rto_ns(0)),
            "the slack should stay near its minimum of 200 ms"
        );
    }

    #[test]
    fn the_timeout_doubles_up_to_its_maximum() {
        let mut rtt = rtt();
        rtt.sample(100 * MS);
        assert_eq!([1, 2, 3].map(|backoffs| rtt.rto_ns(backoffs) / MS), [600, 1200, 2400]);
        assert_eq!([8, 31, 32, u32::MAX].map(|backoffs| rtt.rto_ns(backoffs) / MS), [60_000; 4]);
    }

    #[test]
    fn extreme_samples_are_bounded() {
        let mut rtt = rtt();
        for _ in 0..10 {
            rtt.sample(u64::MAX);
            rtt.sample(0);
        }
        assert!(rtt.rto_ns(0) <= 60_000 * MS, "the timeout should be a minute at most");
        assert_eq!(nanos(Duration::MAX), SAMPLE_NS_MAX);
        assert_eq!(nanos(Duration::new(3, 5)), 3_000_000_005);
    }

    #[test]
    fn after_a_lost_syn_the_timeout_is_three_seconds_until_a_sample() {
        let mut rtt = rtt();
        rtt.raise_after_syn_timeout();
        assert_eq!(rtt.rto_ns(0), 3000 * MS);
        rtt.sample(10 * MS);
        assert_eq!(rtt.rto_ns(0), 210 * MS);
        rtt.raise_after_syn_timeout();
        assert_eq!(rtt.rto_ns(0), 210 * MS);
    }
}
