//! When memory is short: which clients are paused and which are closed, so that all others continue.
//!
//! Helpers and sidecars use the same rules; they count the bytes and close the connections themselves.

use core::fmt;
use core::time::Duration;

use spillway_transport::Time;

/// While memory is scarce, a client that has not read for this time is closed.
pub const UNREAD_MAX: Duration = Duration::from_secs(10);

/// A bound on bytes of memory. Memory is *scarce* from three quarters of the bound until use falls to five eighths.
#[derive(Clone, Copy, Debug)]
pub struct MemoryBound {
    max: usize,
    is_scarce: bool,
}

impl MemoryBound {
    /// A bound of `max` bytes, with sufficient memory.
    pub fn new(max: usize) -> MemoryBound {
        MemoryBound { max, is_scarce: false }
    }

    /// The bound, in bytes.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Changes the bound; the next [`judge`](Self::judge) applies it.
    pub fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    /// Whether clients that do not read are paused.
    pub fn is_scarce(&self) -> bool {
        self.is_scarce
    }

    /// Decides whether memory is scarce when `total` bytes are in use. Returns whether that has changed.
    pub fn judge(&mut self, total: usize) -> bool {
        let was_scarce = self.is_scarce;
        self.is_scarce = if was_scarce { !self.is_calm(total) } else { total > self.max / 4 * 3 };
        was_scarce != self.is_scarce
    }

    /// Whether clients must be closed.
    pub fn is_exceeded(&self, total: usize) -> bool {
        total > self.max
    }

    /// Whether an eighth of the bound is free: no further client need be closed.
    pub fn is_relieved(&self, total: usize) -> bool {
        total <= self.max / 8 * 7
    }

    /// Whether use is low enough for memory to be no longer scarce.
    pub fn is_calm(&self, total: usize) -> bool {
        total <= self.max / 8 * 5
    }

    /// Whether enough clients are closed, if the next one to close has bytes that have waited for `age`. Clients whose
    /// bytes have waited are closed until an eighth of the bound is free, others only until the bound holds.
    pub fn is_enough_closed(&self, total: usize, age: Duration) -> bool {
        if age.is_zero() { !self.is_exceeded(total) } else { self.is_relieved(total) }
    }
}

/// Measures for how long a client has not read the bytes that wait for it.
#[derive(Clone, Copy, Debug)]
pub struct Unread {
    /// When the client has read up to this stream offset, it has read all bytes that waited at `since`.
    mark: u64,
    since: Time,
}

impl Unread {
    /// A client without waiting bytes.
    pub fn new(now: Time) -> Unread {
        Unread { mark: 0, since: now }
    }

    /// `sent`: stream offset of all bytes for the client, of which the client's host has taken all but `waiting`. The
    /// age stays small for a client that keeps up, and grows for one that reads too slowly.
    pub fn note(&mut self, now: Time, sent: u64, waiting: usize) {
        if sent.saturating_sub(waiting as u64) >= self.mark {
            *self = Unread { mark: sent, since: now };
        }
    }

    /// How long bytes have waited for the client.
    pub fn age(&self, now: Time) -> Duration {
        now.since(self.since)
    }
}

/// Rank of a client for closing, highest first: held bytes × age of unread bytes; where equal, held bytes. Ages above
/// 2 s count as 2 s.
pub fn closing_rank(bytes: usize, age: Duration) -> (u128, usize) {
    const AGE_MAX: Duration = Duration::from_secs(2);
    (bytes as u128 * age.min(AGE_MAX).as_micros(), bytes)
}

/// Details of a client that was closed because memory was short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryReset {
    /// Bytes of memory that the client held.
    pub held_bytes: usize,
    /// How long bytes had waited for the client.
    pub unread: Duration,
    /// The bound for all clients of the thread.
    pub limit_bytes: usize,
}

impl fmt::Display for MemoryReset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "memory is short (this thread's share of max_memory is {} KiB) and the client held {} KiB that it had not \
             read for {:.1} s: let the client read its replies sooner, or raise max_memory",
            self.limit_bytes / 1024,
            self.held_bytes / 1024,
            self.unread.as_secs_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_becomes_scarce_at_three_quarters_and_sufficient_at_five_eighths() {
        let mut bound = MemoryBound::new(800);
        assert!(!bound.judge(600) && !bound.is_scarce(), "memory should not be scarce at 600");
        assert!(
            bound.judge(601) && bound.is_scarce() && !bound.is_exceeded(601),
            "memory should be scarce, but not exceeded, at 601"
        );
        assert!(!bound.judge(501) && bound.is_scarce(), "memory should stay scarce above five eighths");
        assert!(bound.judge(500) && !bound.is_scarce(), "memory should be sufficient at 500");
    }

    #[test]
    fn closing_stops_at_the_bound_or_an_eighth_below_by_age() {
        let bound = MemoryBound::new(800);
        let (old, new) = (Duration::from_millis(1), Duration::ZERO);
        assert!(
            !bound.is_enough_closed(801, old) && !bound.is_enough_closed(801, new),
            "closing should go on above the bound"
        );
        assert!(
            !bound.is_enough_closed(701, old) && bound.is_enough_closed(800, new),
            "closing by age should go on until an eighth below the bound"
        );
        assert!(bound.is_enough_closed(700, old), "closing should stop an eighth below the bound");
    }

    #[test]
    fn age_stays_small_for_a_client_that_keeps_up_and_grows_for_a_slow_one() {
        let at = |ms: u64| Time(ms * 1_000_000);
        let (mut reader, mut slow_reader) = (Unread::new(at(0)), Unread::new(at(0)));
        for turn in 1..100_u64 {
            // Each turn of 10 ms sends each client 1,000 bytes. 2,000 bytes wait for `reader`; `slow_reader` reads only
            // 10 bytes a turn.
            reader.note(at(turn * 10), turn * 1_000, 2_000.min(turn as usize * 1_000));
            slow_reader.note(at(turn * 10), turn * 1_000, turn as usize * 990);
        }
        // 2,000 bytes are two turns of 10 ms; the bound has one more turn.
        assert!(
            reader.age(at(1_000)) <= Duration::from_millis(30),
            "the age of a client that keeps up should stay at a few reads: {reader:?}"
        );
        // The client has read 1 %, so its oldest unread byte was sent in one of the first turns.
        assert!(
            slow_reader.age(at(1_000)) >= Duration::from_millis(900),
            "the age of a slow client should grow with the time: {slow_reader:?}"
        );
    }

    #[test]
    fn rank_is_held_bytes_times_age_then_held_bytes() {
        let rank = |bytes, ms| closing_rank(bytes, Duration::from_millis(ms));
        assert!(rank(100_000, 500) > rank(500_000, 5), "a large reply that was just sent should rank below");
        assert!(rank(500_000, 3_000) > rank(100_000, 60_000), "beyond 2 s only bytes should count");
        assert!(rank(2, 0) > rank(1, 0), "with age 0 only bytes should count");
    }
}
