//! How much a link's peer sends that carries nobody's bytes: control messages, empty frames, bytes of connections that have
//! ended. They take their receiver as much time as data does, and no credit bounds them.

use core::time::Duration;

use spillway_transport::Time;

/// What one byte takes of the allowance: 16 KiB are allowed each second, which is a thousand *credit* frames.
const PER_BYTE: Duration = Duration::from_nanos(1_000_000_000 / (16 * 1024));
/// How far a peer may be ahead of its allowance: 16 KiB.
const AHEAD_MAX: Duration = Duration::from_secs(1);
/// How long it waits at most, whatever it has sent.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Bytes of data, in either direction, that allow one byte more. A session says *credit* and *acknowledge*, 31 bytes
/// together, once for 64 KB.
const DATA_BYTES: u64 = 16;

#[expect(clippy::cast_possible_truncation, reason = "of one second at most")]
const fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// What one peer has sent beyond its allowance. While that is too much nothing of it is read: its own TCP slows it, and
/// nobody else.
#[derive(Debug, Default)]
pub(crate) struct Overhead {
    /// When the allowance will have paid for all that came: lies in the past for nearly all peers.
    paid_at: Time,
}

impl Overhead {
    /// The peer has sent bytes that are nobody's.
    pub(crate) fn spend(&mut self, now: Time, bytes: usize) {
        let cost = PER_BYTE.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX));
        self.paid_at = (self.paid_at.max(now) + cost).min(now + AHEAD_MAX + WAIT_MAX);
    }

    /// Bytes of data have come from the peer, or go to it.
    pub(crate) fn carried(&mut self, bytes: usize) {
        let earned = nanoseconds(PER_BYTE) * (bytes as u64) / DATA_BYTES;
        self.paid_at = Time(self.paid_at.0.saturating_sub(earned));
    }

    /// When the peer may be read again; `None`: now.
    pub(crate) fn rests_until(&self, now: Time) -> Option<Time> {
        (self.paid_at > now + AHEAD_MAX).then(|| Time(self.paid_at.0 - nanoseconds(AHEAD_MAX)))
    }
}

/// The allowance of a link that this end reads. When the peer has used it up, the link is not read for a time.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    overhead: Overhead,
    paused_until: Option<Time>,
}

impl Allowance {
    /// The peer has sent bytes that are not data of an open connection.
    pub(crate) fn spend(&mut self, now: Time, bytes: usize) {
        self.overhead.spend(now, bytes);
    }

    /// Bytes of data have come from the peer, or go to it.
    pub(crate) fn carried(&mut self, bytes: usize) {
        self.overhead.carried(bytes);
    }

    /// All that was received has been decomposed: decides whether the link is read on.
    pub(crate) fn end_of_input(&mut self, now: Time) {
        self.paused_until = self.overhead.rests_until(now);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout). `None`: the link is read.
    pub(crate) fn paused_until(&self) -> Option<Time> {
        self.paused_until
    }

    /// Ends the pause when its time has come.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.paused_until = self.paused_until.filter(|until| *until > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_burst_is_allowed_and_more_waits_for_its_time() {
        let mut overhead = Overhead::default();
        overhead.spend(Time(5 * S), 16 * 1024);
        assert_eq!(overhead.rests_until(Time(5 * S)), None);
        overhead.spend(Time(5 * S), 8 * 1024);
        let until = overhead.rests_until(Time(5 * S)).unwrap();
        assert!((5 * S + S / 2 - 10_000..=5 * S + S / 2).contains(&until.0), "{until:?}");
        assert_eq!(overhead.rests_until(until), None);
        overhead.spend(until, 1);
        assert!(overhead.rests_until(until).is_some(), "nothing is saved up");
    }

    #[test]
    fn no_peer_waits_for_longer_than_a_second() {
        let mut overhead = Overhead::default();
        (0..1000).for_each(|_| overhead.spend(Time(S), usize::MAX));
        assert_eq!(overhead.rests_until(Time(S)), Some(Time(2 * S)));
    }

    #[test]
    fn data_allows_what_goes_along_with_it() {
        let mut overhead = Overhead::default();
        for _ in 0..100_000 {
            overhead.carried(64 * 1024);
            overhead.spend(Time(S), 1000);
        }
        assert_eq!(overhead.rests_until(Time(S)), None);
        overhead.carried(usize::MAX / 100_000_000);
        overhead.spend(Time(S), 17 * 1024);
        assert!(overhead.rests_until(Time(S)).is_some(), "and nothing beyond the burst later");
    }
}
