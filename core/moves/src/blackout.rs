//! How long connections that move are without a server, as their source sees it.

use alloc::collections::BTreeMap;
use core::time::Duration;

use spillway_handoff::MoveResult;
use spillway_transport::Time;
use spillway_wire::switch::Flow;

/// Maximum number of connections whose blackout is being measured: as many as an agent can move at a time.
const MEASURED_MAX: usize = 1024;
/// Upper bounds of the buckets, in µs.
pub const BLACKOUT_BOUNDS_US: [u64; 15] =
    [10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000];

/// Numbers of blackouts by their lengths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlackoutCounts {
    /// Numbers by bucket of [`BLACKOUT_BOUNDS_US`]; the last one is that of longer blackouts.
    pub buckets: [u64; BLACKOUT_BOUNDS_US.len() + 1],
    /// Sum of all blackouts.
    pub sum: Duration,
    /// The longest blackout.
    pub max: Duration,
}

impl BlackoutCounts {
    /// Number of blackouts.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The upper bound of the bucket in which `permille` of a thousand blackouts end, at most the longest blackout. `None`
    /// without blackouts.
    pub fn quantile(&self, permille: u64) -> Option<Duration> {
        let rank = (self.count() * permille.min(1000)).div_ceil(1000).max(1);
        let mut below = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            below += count;
            if below >= rank {
                let bound = BLACKOUT_BOUNDS_US.get(index).map(|us| Duration::from_micros(*us));
                return Some(bound.map_or(self.max, |bound| bound.min(self.max)));
            }
        }
        None
    }

    fn record(&mut self, blackout: Duration) {
        let us = blackout.as_micros();
        let bucket = BLACKOUT_BOUNDS_US.iter().position(|bound| us <= u128::from(*bound));
        self.buckets[bucket.unwrap_or(BLACKOUT_BOUNDS_US.len())] += 1;
        self.sum = self.sum.saturating_add(blackout);
        self.max = self.max.max(blackout);
    }
}

/// Measures blackouts: from a connection's export until *accepted* has arrived, or until the connection has come back.
#[derive(Debug, Default)]
pub(crate) struct Blackouts {
    exported: BTreeMap<Flow, Time>,
    counts: BlackoutCounts,
}

impl Blackouts {
    pub(crate) fn counts(&self) -> &BlackoutCounts {
        &self.counts
    }

    /// A connection was exported.
    pub(crate) fn begin(&mut self, now: Time, flow: Flow) {
        if self.exported.len() < MEASURED_MAX || self.exported.contains_key(&flow) {
            self.exported.insert(flow, now);
        }
    }

    /// A move has ended. A connection that was let go has no known end of its blackout.
    pub(crate) fn end(&mut self, now: Time, flow: &Flow, result: MoveResult) {
        let Some(exported) = self.exported.remove(flow) else { return };
        if matches!(result, MoveResult::Moved | MoveResult::Returned(_)) {
            self.counts.record(now.since(exported));
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    fn flow(port: u16) -> Flow {
        let end = |port| SocketAddr::from(([10, 0, 0, 2], port)).into();
        Flow::new(end(port), end(80)).unwrap()
    }

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn blackouts_count_in_their_buckets_until_the_connection_has_a_server() {
        let mut blackouts = Blackouts::default();
        let ends = [
            (1, 20, MoveResult::Moved),
            (2, 21, MoveResult::Returned(None)),
            (3, 700_000, MoveResult::Moved),
            (4, 30, MoveResult::LetGo),
        ];
        for (port, length, result) in ends {
            blackouts.begin(Time(5_000), flow(port));
            blackouts.end(Time(5_000 + length * 1_000), &flow(port), result);
        }
        // A move that ended before the export has no blackout.
        blackouts.end(Time(9_000_000), &flow(9), MoveResult::Kept(spillway_handoff::Obstacle::Silence));
        let counts = blackouts.counts();
        assert_eq!((counts.buckets[1], counts.buckets[2], counts.buckets[15], counts.count()), (1, 1, 1, 3));
        assert_eq!((counts.sum, counts.max), (us(700_041), us(700_000)));
        assert_eq!([1, 500, 1000].map(|at| counts.quantile(at).unwrap()), [us(20), us(50), us(700_000)]);
        assert_eq!(BlackoutCounts::default().quantile(500), None);
    }

    #[test]
    fn measured_connections_are_bounded() {
        let mut blackouts = Blackouts::default();
        for port in 1..=2 * MEASURED_MAX {
            blackouts.begin(Time(0), flow(u16::try_from(port).unwrap()));
        }
        assert_eq!(blackouts.exported.len(), MEASURED_MAX);
    }
}
