//! Latency of the requests of sampled plain clients.

use spillway_batch::Histogram;
use spillway_requests::{Protocol, Reply, StopReason, Tracker};
use spillway_transport::Time;

/// How requests of a service are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// Protocol of the service's clients and server.
    pub protocol: Protocol,
    /// One of this many plain clients is measured; at least 1.
    pub sample_one_in: u32,
}

const LATENCY_NS: &[u64] = &[
    50_000,
    100_000,
    200_000,
    300_000,
    500_000,
    750_000,
    1_000_000,
    1_500_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// Measurements at the sampled clients of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestMetrics {
    /// Time from the last byte of a request to the last byte of its reply, at the helper, in nanoseconds. The delay of
    /// batching is part of it.
    pub latency_ns: Histogram,
    /// Replies whose latency does not depend on the server alone: those of blocking commands, and those that waited
    /// until the client read earlier ones.
    pub unmeasured: u64,
    /// Clients whose requests could not be followed any more, by [`StopReason::index`].
    pub given_up: [u64; StopReason::LABELS.len()],
}

impl Default for RequestMetrics {
    fn default() -> RequestMetrics {
        RequestMetrics { latency_ns: Histogram::new(LATENCY_NS), unmeasured: 0, given_up: Default::default() }
    }
}

impl RequestMetrics {
    /// The tracker of a new plain client if it is sampled. `accepted_before`: the number of earlier plain clients.
    pub(crate) fn sample(measurement: Option<Measurement>, accepted_before: u64) -> Option<Tracker> {
        let Measurement { protocol, sample_one_in } = measurement?;
        accepted_before.is_multiple_of(u64::from(sample_one_in.max(1))).then(|| Tracker::new(protocol))
    }

    /// Follows requests of a sampled client. Call this before the bytes are forwarded.
    pub(crate) fn requests(&mut self, tracker: &mut Tracker, now: Time, bytes: &[u8]) {
        tracker.requests(now, bytes);
        self.count_given_up(tracker);
    }

    /// Measures replies to a sampled client.
    pub(crate) fn replies(&mut self, tracker: &mut Tracker, now: Time, bytes: &[u8]) {
        tracker.replies(now, bytes, |Reply { latency }| match latency {
            Some(latency) => self.latency_ns.record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX)),
            None => self.unmeasured += 1,
        });
        self.count_given_up(tracker);
    }

    fn count_given_up(&mut self, tracker: &mut Tracker) {
        if let Some(reason) = tracker.poll_stop_reason() {
            self.given_up[reason.index()] += 1;
        }
    }

    /// Clients that could not be followed any more, with the reason's name in status and metrics.
    pub fn given_up_by_reason(&self) -> [(&'static str, u64); StopReason::LABELS.len()] {
        core::array::from_fn(|index| (StopReason::LABELS[index], self.given_up[index]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_three_is_sampled_and_none_without_a_protocol() {
        let measurement = Measurement { protocol: Protocol::Memcached, sample_one_in: 3 };
        let sampled = (0..9).filter(|n| RequestMetrics::sample(Some(measurement), *n).is_some());
        assert_eq!(sampled.collect::<alloc::vec::Vec<_>>(), [0, 3, 6]);
        assert!(RequestMetrics::sample(None, 0).is_none(), "nothing should be sampled without a protocol");
        let zero = Measurement { sample_one_in: 0, ..measurement };
        assert!(RequestMetrics::sample(Some(zero), 5).is_some(), "0 should count as 1");
    }

    #[test]
    fn latency_counts_from_the_end_of_a_request_to_the_end_of_its_reply() {
        let mut tracker = Tracker::new(Protocol::Memcached);
        let mut metrics = RequestMetrics::default();
        metrics.requests(&mut tracker, Time(0), b"get a");
        metrics.requests(&mut tracker, Time(60_000), b"\r\n");
        metrics.replies(&mut tracker, Time(100_000), b"EN");
        metrics.replies(&mut tracker, Time(260_000), b"D\r\n");
        assert_eq!(
            (metrics.latency_ns.count(), metrics.latency_ns.sum()),
            (1, 200_000),
            "one latency of 200 µs should be recorded"
        );
        metrics.requests(&mut tracker, Time(300_000), b"no such command\r\n");
        assert_eq!(metrics.given_up.iter().sum::<u64>(), 1);
        metrics.requests(&mut tracker, Time(400_000), b"get a\r\n");
        metrics.replies(&mut tracker, Time(500_000), b"END\r\n");
        assert_eq!(
            (metrics.latency_ns.count(), metrics.given_up.iter().sum::<u64>()),
            (1, 1),
            "the measurement should have been given up"
        );
    }
}
