//! Compares the memory that all connections of one thread hold with the thread's share of `max_memory`.

use std::time::{Duration, Instant};

use spillway_policy::memory::{MemoryBound, UNREAD_MAX, closing_rank};

/// Pause after closing has not freed enough: the remaining memory holds requests that the server has not accepted, and
/// another search would find no connection to close.
const CLOSING_RETRY: Duration = Duration::from_millis(10);

/// How much memory is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Supply {
    Enough,
    /// Clients that do not read their replies are paused.
    Scarce,
    /// The limit is still exceeded after closing. Until an eighth is free, clients that hold memory are paused, and no
    /// client is accepted.
    UsedUp,
}

/// Memory of a connection whose client does not read its replies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    pub bytes: usize,
    /// How long the oldest unread reply bytes have waited for the client.
    pub age: Duration,
}

impl Holding {
    pub fn rank(&self) -> (u128, usize) {
        closing_rank(self.bytes, self.age)
    }
}

/// Why connections are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The limit is exceeded.
    Exceeded,
    /// Memory stays scarce: clients that have not read for [`UNREAD_MAX`] are closed.
    Scarce,
}

#[derive(Debug)]
pub(crate) struct Memory {
    bound: MemoryBound,
    total: usize,
    supply: Supply,
    is_used_up: bool,
    /// When to search again for connections to close, after a search has freed too little.
    search_again_at: Option<Instant>,
}

impl Memory {
    /// `max`: the thread's share of `max_memory`, in bytes.
    pub fn new(max: usize) -> Memory {
        Memory {
            bound: MemoryBound::new(max),
            total: 0,
            supply: Supply::Enough,
            is_used_up: false,
            search_again_at: None,
        }
    }

    pub fn total(&self) -> usize {
        self.total
    }

    pub fn max(&self) -> usize {
        self.bound.max()
    }

    /// Records that the bytes of memory that one connection holds have changed.
    pub fn record_change(&mut self, from: usize, to: usize) {
        self.total = self.total - from + to;
    }

    /// The result of the last [`update_supply`](Self::update_supply).
    pub fn supply(&self) -> Supply {
        self.supply
    }

    pub fn must_close(&self, now: Instant) -> bool {
        self.bound.is_exceeded(self.total) && self.search_again_at.is_none_or(|until| until <= now)
    }

    /// Whether enough memory is free, so that the connection of `holding` and those after it stay open.
    /// Connections are closed in descending [rank](Holding::rank).
    pub fn is_enough_closed(&self, shortage: Shortage, holding: Holding) -> bool {
        match shortage {
            Shortage::Exceeded => self.bound.is_enough_closed(self.total, holding.age),
            Shortage::Scarce => self.bound.is_calm(self.total),
        }
    }

    pub fn may_close(&self, shortage: Shortage, holding: Holding) -> bool {
        shortage == Shortage::Exceeded || holding.age >= UNREAD_MAX
    }

    /// Records that all connections that may be closed are closed. If the limit is still exceeded, memory is used up.
    pub fn note_closed(&mut self, now: Instant) {
        self.search_again_at = None;
        if self.bound.is_exceeded(self.total) {
            self.is_used_up = true;
            self.search_again_at = Some(now + CLOSING_RETRY);
        }
    }

    /// Updates [`supply`](Self::supply). Returns the previous value if it has changed.
    pub fn update_supply(&mut self) -> Option<Supply> {
        self.bound.judge(self.total);
        if self.bound.is_relieved(self.total) {
            self.is_used_up = false;
        }
        let supply = match (self.is_used_up, self.bound.is_scarce()) {
            (true, _) => Supply::UsedUp,
            (false, true) => Supply::Scarce,
            (false, false) => Supply::Enough,
        };
        let before = std::mem::replace(&mut self.supply, supply);
        (before != supply).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_up_after_closing_frees_too_little_until_an_eighth_is_free() {
        let now = Instant::now();
        let mut memory = Memory::new(800);
        memory.record_change(0, 601);
        assert_eq!((memory.update_supply(), memory.supply()), (Some(Supply::Enough), Supply::Scarce));
        assert!(!memory.must_close(now));
        memory.record_change(601, 801);
        assert!(memory.must_close(now));
        assert_eq!(memory.update_supply(), None, "memory should not be used up before closing was tried");
        memory.note_closed(now);
        assert_eq!((memory.update_supply(), memory.supply()), (Some(Supply::Scarce), Supply::UsedUp));
        assert!(!memory.must_close(now) && memory.must_close(now + CLOSING_RETRY));
        memory.record_change(801, 701);
        assert_eq!(memory.update_supply(), None, "memory should stay used up: less than an eighth is free");
        memory.record_change(701, 700);
        assert_eq!((memory.update_supply(), memory.supply()), (Some(Supply::UsedUp), Supply::Scarce));
        memory.record_change(700, 500);
        assert_eq!((memory.update_supply(), memory.supply()), (Some(Supply::Scarce), Supply::Enough));
    }

    #[test]
    fn scarce_memory_closes_only_connections_unread_for_long() {
        let mut memory = Memory::new(800);
        memory.record_change(0, 601);
        let holding = |age| Holding { bytes: 100, age };
        let (long, short) = (holding(UNREAD_MAX), holding(UNREAD_MAX - Duration::from_millis(1)));
        assert!(memory.may_close(Shortage::Scarce, long) && !memory.may_close(Shortage::Scarce, short));
        assert!(memory.may_close(Shortage::Exceeded, short));
        assert!(
            !memory.is_enough_closed(Shortage::Scarce, long),
            "closing should go on while memory is scarce"
        );
        memory.record_change(601, 500);
        assert!(memory.is_enough_closed(Shortage::Scarce, long));
    }
}
