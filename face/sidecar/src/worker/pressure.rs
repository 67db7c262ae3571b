//! When memory is short: clients that do not read their replies are paused, and those of them that hold most are closed.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use spillway_policy::memory::MemoryCut;
use tracing::{info, warn};

use super::Worker;
use crate::counters::Ending;
use crate::memory::{Holding, Shortage, Supply};
use crate::table::Place;

/// Lines about clients that were closed: at most one in this time.
const CLOSED_INTERVAL: Duration = Duration::from_secs(1);
/// Lines about memory that becomes scarce, or no longer is.
const SCARCE_INTERVAL: Duration = Duration::from_secs(5);

/// What was said about memory, and what came since.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    closed: Limited,
    scarce: Limited,
    enough: Limited,
    /// Clients paused and closed before memory became scarce.
    before: (u64, u64),
    closed_in_all: u64,
}

/// Lines of one kind, of which only some are written.
#[derive(Debug, Default)]
struct Limited {
    next_at: Option<Instant>,
    left_out: u64,
}

impl Limited {
    /// Whether one may be written now: then, how many were left out before it.
    fn count(&mut self, now: Instant, interval: Duration) -> Option<u64> {
        if self.next_at.is_some_and(|at| now < at) {
            self.left_out += 1;
            return None;
        }
        self.next_at = Some(now + interval);
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Worker {
    /// After anything that may have taken memory.
    pub(super) fn keep_within_memory(&mut self, now: Instant) {
        if self.memory.wants_closing(now) {
            self.close_largest(now, Shortage::Exceeded);
            self.memory.note_closed(now);
        }
        self.judge_memory(now);
    }

    /// While memory stays scarce, those that have not read for long are closed: memory that is never read would stay scarce.
    /// Called about once a second.
    pub(super) fn close_long_unread(&mut self, now: Instant) {
        if self.memory.supply() != Supply::Enough {
            self.close_largest(now, Shortage::Scarce);
            self.judge_memory(now);
        }
    }

    /// Closes those that do not read, in the order of what they hold and for how long, until that is enough.
    fn close_largest(&mut self, now: Instant, why: Shortage) {
        let time = self.resources.time(now);
        let mut holdings: Vec<(u32, Holding)> = Vec::new();
        for index in self.table.in_use() {
            if let Place::Taken(pair) = self.table.get(index)
                && let Some(holding) = pair.holding(time)
            {
                holdings.push((index, holding));
            }
        }
        holdings.sort_unstable_by_key(|(_, holding)| Reverse(holding.rank()));
        for (index, holding) in holdings {
            if self.memory.is_enough_closed(why, holding) {
                return;
            }
            if self.memory.may_close(why, holding) {
                self.close_for_memory(now, index, holding);
            }
        }
    }

    fn close_for_memory(&mut self, now: Instant, index: u32, holding: Holding) {
        let Place::Taken(pair) = self.table.get(index) else { return };
        let client = pair.client_text();
        let Holding { bytes, age } = holding;
        let cut = MemoryCut { held_bytes: bytes, unread: age, limit_bytes: self.memory.max() };
        self.pressure.closed_in_all += 1;
        if let Some(left_out) = self.pressure.closed.count(now, CLOSED_INTERVAL) {
            warn!(%client, reason = "memory", left_out, "client reset: {cut}");
        }
        self.end(now, index, Ending::Memory, false);
    }

    /// Decides anew how much memory there is. Where there is more than before, those that were not read are.
    pub(super) fn judge_memory(&mut self, now: Instant) {
        let before = self.memory.judge();
        let (supply, held) = (self.memory.supply(), self.memory.total());
        self.resources.part.counters.buffered_bytes.set(held as u64);
        let Some(before) = before else { return };
        self.resources.supply = supply;
        self.resources.part.counters.is_scarce.set(u64::from(supply != Supply::Enough));
        if before == Supply::Enough {
            self.say_scarce(now);
        } else if supply == Supply::Enough {
            self.say_enough(now);
        }
        if supply != Supply::UsedUp && before != Supply::Enough {
            self.resume_reading(now);
        }
    }

    /// Those that were not read for want of memory are watched again.
    fn resume_reading(&mut self, now: Instant) {
        for index in self.table.in_use() {
            if let Place::Taken(pair) = self.table.get(index) {
                let interest = pair.interest(self.memory.supply());
                self.watch(now, index, interest);
            }
        }
    }

    fn say_scarce(&mut self, now: Instant) {
        self.pressure.before = (self.resources.part.counters.paused.value(), self.pressure.closed_in_all);
        if let Some(left_out) = self.pressure.scarce.count(now, SCARCE_INTERVAL) {
            warn!(
                buffered_bytes = self.memory.total(),
                limit_bytes = self.memory.max(),
                left_out,
                "memory is scarce: clients that do not read are paused, and closed at the limit, largest first (raise \
                 --max-memory if they should not be)"
            );
        }
    }

    fn say_enough(&mut self, now: Instant) {
        let (paused, closed) = self.pressure.before;
        let paused = self.resources.part.counters.paused.value() - paused;
        let closed = self.pressure.closed_in_all - closed;
        if let Some(left_out) = self.pressure.enough.count(now, SCARCE_INTERVAL) {
            info!(
                buffered_bytes = self.memory.total(),
                limit_bytes = self.memory.max(),
                left_out,
                "there is enough memory again: {paused} clients were paused, {closed} closed"
            );
        }
    }
}
