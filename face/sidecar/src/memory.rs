//! What all connections of one thread hold, against its share of `max_memory`.

use std::time::{Duration, Instant};

use spillway_policy::memory::{MemoryBound, UNREAD_MAX, closing_rank};

/// Connections that hold memory were just looked for in vain: what is left is requests that servers have not taken.
const NOTHING_TO_CLOSE: Duration = Duration::from_millis(10);

/// How much memory there is for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Supply {
    Enough,
    /// Clients that do not read their replies are not read.
    Scarce,
    /// No client that does not read is left to close. Those that hold anything are not read, and no client is accepted,
    /// until an eighth is free.
    UsedUp,
}

/// What a connection holds whose client does not read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    /// Bytes of memory.
    pub bytes: usize,
    /// How long its oldest bytes have waited for it.
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
    /// Memory stays scarce: those that have not read for [`UNREAD_MAX`] are closed.
    Scarce,
}

#[derive(Debug)]
pub(crate) struct Memory {
    bound: MemoryBound,
    total: usize,
    supply: Supply,
    is_used_up: bool,
    /// Until then it is in vain to look for connections to close.
    vain_until: Option<Instant>,
}

impl Memory {
    /// `max`: this thread's share, in bytes.
    pub fn new(max: usize) -> Memory {
        Memory {
            bound: MemoryBound::new(max),
            total: 0,
            supply: Supply::Enough,
            is_used_up: false,
            vain_until: None,
        }
    }

    pub fn total(&self) -> usize {
        self.total
    }

    pub fn max(&self) -> usize {
        self.bound.max()
    }

    /// What one connection holds has changed.
    pub fn changed(&mut self, from: usize, to: usize) {
        self.total = self.total - from + to;
    }

    /// As last [judged](Self::judge).
    pub fn supply(&self) -> Supply {
        self.supply
    }

    /// Whether connections are to be closed at once.
    pub fn wants_closing(&self, now: Instant) -> bool {
        self.bound.is_exceeded(self.total) && self.vain_until.is_none_or(|until| until <= now)
    }

    /// Whether closing ends before this one; they come in the order of their [rank](Holding::rank).
    pub fn is_enough_closed(&self, why: Shortage, holding: Holding) -> bool {
        match why {
            Shortage::Exceeded => self.bound.is_enough_closed(self.total, holding.age),
            Shortage::Scarce => self.bound.is_calm(self.total),
        }
    }

    /// Whether this one may be closed.
    pub fn may_close(&self, why: Shortage, holding: Holding) -> bool {
        why == Shortage::Exceeded || holding.age >= UNREAD_MAX
    }

    /// All that may be closed were. Where that was not enough, memory is used up.
    pub fn note_closed(&mut self, now: Instant) {
        self.vain_until = None;
        if self.bound.is_exceeded(self.total) {
            self.is_used_up = true;
            self.vain_until = Some(now + NOTHING_TO_CLOSE);
        }
    }

    /// Decides anew how much there is. Returns what there was before, if that has changed.
    pub fn judge(&mut self) -> Option<Supply> {
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
    fn used_up_only_when_there_is_nothing_to_close_and_until_an_eighth_is_free() {
        let now = Instant::now();
        let mut memory = Memory::new(800);
        memory.changed(0, 601);
        assert_eq!((memory.judge(), memory.supply()), (Some(Supply::Enough), Supply::Scarce));
        assert!(!memory.wants_closing(now));
        memory.changed(601, 801);
        assert!(memory.wants_closing(now));
        assert_eq!(memory.judge(), None, "closing may be enough");
        memory.note_closed(now);
        assert_eq!((memory.judge(), memory.supply()), (Some(Supply::Scarce), Supply::UsedUp));
        assert!(!memory.wants_closing(now) && memory.wants_closing(now + NOTHING_TO_CLOSE));
        memory.changed(801, 701);
        assert_eq!(memory.judge(), None, "one byte less than an eighth is free");
        memory.changed(701, 700);
        assert_eq!((memory.judge(), memory.supply()), (Some(Supply::UsedUp), Supply::Scarce));
        memory.changed(700, 500);
        assert_eq!((memory.judge(), memory.supply()), (Some(Supply::Scarce), Supply::Enough));
    }

    #[test]
    fn below_the_limit_only_those_are_closed_that_have_not_read_for_long() {
        let mut memory = Memory::new(800);
        memory.changed(0, 601);
        let held = |age| Holding { bytes: 100, age };
        let (long, short) = (held(UNREAD_MAX), held(UNREAD_MAX - Duration::from_millis(1)));
        assert!(memory.may_close(Shortage::Scarce, long) && !memory.may_close(Shortage::Scarce, short));
        assert!(memory.may_close(Shortage::Exceeded, short));
        assert!(!memory.is_enough_closed(Shortage::Scarce, long), "it is closed until memory is enough");
        memory.changed(601, 500);
        assert!(memory.is_enough_closed(Shortage::Scarce, long));
    }
}
