//! Scarce memory: clients that do not read their replies are paused; at the limit they are closed, largest first.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use spillway_policy::memory::MemoryReset;
use tracing::{info, warn};

use super::Worker;
use crate::counters::Ending;
use crate::memory::{Holding, Shortage, Supply};
use crate::table::Entry;

/// Minimum interval between log lines about closed clients.
const CLOSED_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval between log lines about scarce memory, and between lines about its end.
const SCARCE_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Pressure {
    closed: LineLimit,
    scarce: LineLimit,
    enough: LineLimit,
    /// Totals of paused and of closed clients when memory last became scarce.
    totals_before: (u64, u64),
    closed_total: u64,
}

#[derive(Debug, Default)]
struct LineLimit {
    next_at: Option<Instant>,
    lines_left_out: u64,
}

impl LineLimit {
    /// Counts a line. `Some`: write the line, with the number of lines left out before it. `None`: leave it out.
    fn count(&mut self, now: Instant, interval: Duration) -> Option<u64> {
        if self.next_at.is_some_and(|at| now < at) {
            self.lines_left_out += 1;
            return None;
        }
        self.next_at = Some(now + interval);
        Some(std::mem::take(&mut self.lines_left_out))
    }
}

impl Worker {
    /// Closes connections if the limit is exceeded. Call after anything that may have allocated memory.
    pub(super) fn keep_within_memory(&mut self, now: Instant) {
        if self.memory.must_close(now) {
            self.close_largest(now, Shortage::Exceeded);
            self.memory.note_closed(now);
        }
        self.update_supply(now);
    }

    /// While memory is scarce, closes connections that were not read for long: otherwise such clients would keep memory
    /// scarce. Call about once a second.
    pub(super) fn close_long_unread(&mut self, now: Instant) {
        if self.memory.supply() != Supply::Enough {
            self.close_largest(now, Shortage::Scarce);
            self.update_supply(now);
        }
    }

    /// Closes connections whose clients do not read, in descending [rank](Holding::rank), until enough memory is free.
    fn close_largest(&mut self, now: Instant, shortage: Shortage) {
        let time = self.resources.time(now);
        let mut holdings: Vec<(u32, Holding)> = Vec::new();
        for index in self.table.indexes_in_use() {
            if let Entry::Open(pair) = self.table.get(index)
                && let Some(holding) = pair.holding(time)
            {
                holdings.push((index, holding));
            }
        }
        holdings.sort_unstable_by_key(|(_, holding)| Reverse(holding.rank()));
        for (index, holding) in holdings {
            if self.memory.is_enough_closed(shortage, holding) {
                return;
            }
            if self.memory.may_close(shortage, holding) {
                self.close_for_memory(now, index, holding);
            }
        }
    }

    fn close_for_memory(&mut self, now: Instant, index: u32, holding: Holding) {
        let Entry::Open(pair) = self.table.get(index) else { return };
        let client = pair.client_text();
        let Holding { bytes, age } = holding;
        let reset = MemoryReset { held_bytes: bytes, unread: age, limit_bytes: self.memory.max() };
        self.pressure.closed_total += 1;
        if let Some(left_out) = self.pressure.closed.count(now, CLOSED_INTERVAL) {
            warn!(%client, reason = "memory", left_out, "client reset: {reset}");
        }
        self.close(now, index, Ending::Memory, false);
    }

    /// Updates the memory supply. Logs a change, and resumes paused clients when there is more memory than before.
    pub(super) fn update_supply(&mut self, now: Instant) {
        let before = self.memory.update_supply();
        let (supply, held) = (self.memory.supply(), self.memory.total());
        self.resources.thread.counters.buffered_bytes.set(held as u64);
        let Some(before) = before else { return };
        self.resources.supply = supply;
        self.resources.thread.counters.is_scarce.set(u64::from(supply != Supply::Enough));
        if before == Supply::Enough {
            self.log_scarce(now);
        } else if supply == Supply::Enough {
            self.log_enough(now);
        }
        if supply != Supply::UsedUp && before != Supply::Enough {
            self.resume_reading(now);
        }
    }

    fn resume_reading(&mut self, now: Instant) {
        for index in self.table.indexes_in_use() {
            if let Entry::Open(pair) = self.table.get(index) {
                let interest = pair.interest(self.memory.supply());
                self.update_interest(now, index, interest);
            }
        }
    }

    fn log_scarce(&mut self, now: Instant) {
        self.pressure.totals_before =
            (self.resources.thread.counters.paused.value(), self.pressure.closed_total);
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

    fn log_enough(&mut self, now: Instant) {
        let (paused, closed) = self.pressure.totals_before;
        let paused = self.resources.thread.counters.paused.value() - paused;
        let closed = self.pressure.closed_total - closed;
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
