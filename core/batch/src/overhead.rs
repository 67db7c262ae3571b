//! Limits how much a link's peer sends without data: control messages, empty frames, bytes of connections that have
//! ended. These take their receiver as much time as data does, and credit does not bound them.

use core::time::Duration;

use spillway_transport::Time;

/// Cost of one byte. 16 KiB are allowed each second, which is about a thousand *credit* frames.
const PER_BYTE: Duration = Duration::from_nanos(1_000_000_000 / (16 * 1024));
/// How far a peer may exceed its allowance: 16 KiB.
const AHEAD_MAX: Duration = Duration::from_secs(1);
/// Longest pause of a peer.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Bytes of data, in either direction, that allow one byte more. A session sends *credit* and *acknowledge*, 31 bytes
/// together, once for 64 KB.
const DATA_BYTES: u64 = 16;

#[expect(clippy::cast_possible_truncation, reason = "of one second at most")]
const fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// What one peer has sent beyond its allowance. Above the limit it is not read, so TCP slows this peer alone.
#[derive(Debug, Default)]
pub(crate) struct Overhead {
    /// When the allowance covers all bytes received. Lies in the past for nearly all peers.
    paid_at: Time,
}

impl Overhead {
    /// The peer has sent bytes that are not data of an open connection.
    pub(crate) fn spend(&mut self, now: Time, bytes: usize) {
        let cost = PER_BYTE.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX));
        self.paid_at = (self.paid_at.max(now) + cost).min(now + AHEAD_MAX + WAIT_MAX);
    }

    /// Bytes of data were received from the peer, or sent to it.
    pub(crate) fn carried(&mut self, bytes: usize) {
        let earned = nanoseconds(PER_BYTE) * (bytes as u64) / DATA_BYTES;
        self.paid_at = Time(self.paid_at.0.saturating_sub(earned));
    }

    /// When the peer may be read again. `None`: now.
    pub(crate) fn throttled_until(&self, now: Time) -> Option<Time> {
        (self.paid_at > now + AHEAD_MAX).then(|| Time(self.paid_at.0 - nanoseconds(AHEAD_MAX)))
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

    pub(crate) fn carried(&mut self, bytes: usize) {
        self.overhead.carried(bytes);
    }

    /// Call when all input is decomposed: decides whether reading pauses.
    pub(crate) fn end_of_input(&mut self, now: Time) {
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

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_burst_is_allowed_and_more_than_that_pauses_reading() {
        let mut overhead = Overhead::default();
        overhead.spend(Time(5 * S), 16 * 1024);
        assert_eq!(overhead.throttled_until(Time(5 * S)), None);
        overhead.spend(Time(5 * S), 8 * 1024);
        let until = overhead.throttled_until(Time(5 * S)).unwrap();
        assert!((5 * S + S / 2 - 10_000..=5 * S + S / 2).contains(&until.0), "{until:?}");
        assert_eq!(overhead.throttled_until(until), None);
        overhead.spend(until, 1);
        assert!(overhead.throttled_until(until).is_some(), "the allowance is used up");
    }

    #[test]
    fn a_pause_lasts_at_most_one_second() {
        let mut overhead = Overhead::default();
        (0..1000).for_each(|_| overhead.spend(Time(S), usize::MAX));
        assert_eq!(overhead.throttled_until(Time(S)), Some(Time(2 * S)));
    }

    #[test]
    fn data_allows_a_share_of_control_messages() {
        let mut overhead = Overhead::default();
        for _ in 0..100_000 {
            overhead.carried(64 * 1024);
            overhead.spend(Time(S), 1000);
        }
        assert_eq!(overhead.throttled_until(Time(S)), None);
        overhead.carried(usize::MAX / 100_000_000);
        overhead.spend(Time(S), 17 * 1024);
        assert!(
            overhead.throttled_until(Time(S)).is_some(),
            "data allows at most the burst of 16 KiB in advance"
        );
    }
}
