//! Round-trip times and the retransmission timeout (RFC 6298).

use core::time::Duration;

/// A longer round trip than this (73 minutes) counts as this.
const SAMPLE_NS_MAX: u64 = 1 << 42;

/// The timeout after a SYN was sent again, until a round trip was measured (RFC 6298 §5.7).
const AFTER_SYN_TIMEOUT_NS: u64 = 3_000_000_000;

/// What is known of the path's round trips, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rtt {
    /// Zero until the first sample.
    smoothed_ns: u64,
    variation_ns: u64,
    smallest_ns: u64,
    /// Without backoff.
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

    /// A round trip was measured: never of what was sent twice, unless by timestamps (Karn; RFC 6298 §3).
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
        self.compute();
    }

    /// The floor is one of the variation's term, as Linux has it: a steady long path gets slack as well, and a peer
    /// may delay its acknowledgements on any path.
    fn compute(&mut self) {
        let slack_ns = (4 * self.variation_ns).max(self.rto_ns_min);
        self.rto_ns = (self.smoothed_ns + slack_ns).clamp(1, self.rto_ns_max);
    }

    /// The SYN was sent again, so its round trip is unknown (RFC 6298 §5.7).
    pub(super) fn syn_timed_out(&mut self) {
        if self.smoothed_ns == 0 {
            self.rto_ns = self.rto_ns.max(AFTER_SYN_TIMEOUT_NS).min(self.rto_ns_max);
        }
    }

    /// The timeout after so many in a row, each twice the one before (RFC 6298 §5.5), in nanoseconds.
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

    /// As another stack measured it.
    pub(super) fn restore(&mut self, smoothed_ns: u64, variation_ns: u64, smallest_ns: u64) {
        if smoothed_ns > 0 {
            self.smoothed_ns = smoothed_ns.min(SAMPLE_NS_MAX);
            self.variation_ns = variation_ns.min(SAMPLE_NS_MAX);
            self.smallest_ns = smallest_ns.clamp(1, self.smoothed_ns);
            self.compute();
        }
    }
}
