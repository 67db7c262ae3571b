//! Limits the bytes that a link's peer sends without data: control messages, empty frames, bytes of ended connections.
//! Such bytes cost the receiver as much time as data, and credit does not bound them.

use core::time::Duration;

use spillway_transport::Time;

/// Time in which the allowance grows by one byte. It grows by 16 KiB, about a thousand *credit* frames, each second.
const COST_PER_BYTE: Duration = Duration::from_nanos(1_000_000_000 / (16 * 1024));
/// Excess over the allowance above which reading pauses: 16 KiB, stated as the time in which the allowance
/// grows by them.
const EXCESS_MAX: Duration = Duration::from_secs(1);
/// Longest pause in reading from a peer.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Bytes of data, in either direction, for which the allowance grows by one byte. A session needs less: it
/// sends *credit* and *acknowledge*, 31 bytes together, for each 64 KiB of data.
const DATA_BYTES_PER_BYTE: u64 = 16;

#[expect(clippy::cast_possible_truncation, reason = "at most one second")]
const fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// The bytes that one peer has sent beyond its allowance. Above [`EXCESS_MAX`] the link is not read, so TCP
/// slows the peer down.
#[derive(Debug, Default)]
pub(crate) struct Overhead {
    /// When the allowance covers all received bytes. This time is in the past for nearly all peers.
    paid_at: Time,
}

impl Overhead {
    /// The peer has sent bytes that are not data of an open connection.
    pub(crate) fn spend(&mut self, now: Time, bytes: usize) {
        let cost = COST_PER_BYTE.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX));
        self.paid_at = (self.paid_at.max(now) + cost).min(now + EXCESS_MAX + PAUSE_MAX);
    }

    /// Bytes of data were received from the peer, or sent to it.
    pub(crate) fn earn(&mut self, bytes: usize) {
        let earned = nanoseconds(COST_PER_BYTE) * (bytes as u64) / DATA_BYTES_PER_BYTE;
        self.paid_at = Time(self.paid_at.0.saturating_sub(earned));
    }

    /// When the peer may be read again. `None`: now.
    pub(crate) fn throttled_until(&self, now: Time) -> Option<Time> {
        (self.paid_at > now + EXCESS_MAX).then(|| Time(self.paid_at.0 - nanoseconds(EXCESS_MAX)))
    }
}

/// The allowance of one link's peer, and the pause in reading when it is used up.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    overhead: Overhead,
    paused_until: Option<Time>,
}

impl Allowance {
    pub(crate) fn spend(&mut self, now: Time, bytes: usize) {
        self.overhead.spend(now, bytes);
    }

    pub(crate) fn earn(&mut self, bytes: usize) {
        self.overhead.earn(bytes);
    }

    /// Decides whether reading pauses. Call when all input is decomposed.
    pub(crate) fn decide_pause(&mut self, now: Time) {
        self.paused_until = self.overhead.throttled_until(now);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout). `None`: reading is not paused.
    pub(crate) fn paused_until(&self) -> Option<Time> {
        self.paused_until
    }

    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.paused_until = self.paused_until.filter(|until| *until > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn reading_pauses_only_beyond_a_burst_of_16_kib() {
        let mut overhead = Overhead::default();
        overhead.spend(Time(5 * SECOND), 16 * 1024);
        assert_eq!(overhead.throttled_until(Time(5 * SECOND)), None);
        overhead.spend(Time(5 * SECOND), 8 * 1024);
        let until = overhead.throttled_until(Time(5 * SECOND)).unwrap();
        // 8 KiB beyond the burst at 16 KiB a second are half a second; the cost of a byte is rounded down, by 4 µs in
        // all.
        assert!(
            (5 * SECOND + SECOND / 2 - 10_000..=5 * SECOND + SECOND / 2).contains(&until.0),
            "reading should pause until the bytes beyond the burst are earned: {until:?}"
        );
        assert_eq!(overhead.throttled_until(until), None);
        overhead.spend(until, 1);
        assert!(overhead.throttled_until(until).is_some(), "the allowance should be used up");
    }

    #[test]
    fn a_pause_lasts_at_most_one_second() {
        let mut overhead = Overhead::default();
        (0..1000).for_each(|_| overhead.spend(Time(SECOND), usize::MAX));
        assert_eq!(overhead.throttled_until(Time(SECOND)), Some(Time(2 * SECOND)));
    }

    #[test]
    fn data_earns_allowance_for_control_messages() {
        let mut overhead = Overhead::default();
        for _ in 0..100_000 {
            overhead.earn(64 * 1024);
            overhead.spend(Time(SECOND), 1000);
        }
        assert_eq!(overhead.throttled_until(Time(SECOND)), None);
        overhead.earn(usize::MAX / 100_000_000); // far more than a burst, without overflow
        overhead.spend(Time(SECOND), 17 * 1024);
        assert!(
            overhead.throttled_until(Time(SECOND)).is_some(),
            "data should not earn allowance in advance"
        );
    }
}
