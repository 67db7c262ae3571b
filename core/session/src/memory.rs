//! The memory of all sessions of a server, and which sessions end when it exceeds its bound.

use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use crate::slots::SessionHandle;
use crate::table::Sessions;

/// Sessions end in the order of held bytes × age of unread bytes, largest product first. Ages above this one
/// count as this one.
const AGE_MAX: Duration = Duration::from_secs(2);

impl<C: Copy + PartialEq> Sessions<C> {
    /// Updates the table's memory count; called after each change to a session's streams.
    pub(crate) fn count(&mut self, session: SessionHandle) {
        let now = self.now;
        let Some(entry) = self.slots.get_mut(session) else { return };
        let held = entry.stream.held();
        if entry.stream.acknowledged() >= entry.unread_mark {
            (entry.unread_mark, entry.unread_since) = (entry.stream.written(), now);
        }
        self.held = self.held - entry.counted + held;
        entry.counted = held;
    }

    /// The bound of [`TableLimits::memory_bytes_max`](crate::TableLimits::memory_bytes_max).
    pub fn memory_bytes_max(&self) -> usize {
        self.limits.memory_bytes_max
    }

    /// Removes a session that is about to end from the memory count.
    pub(crate) fn uncount(&mut self, session: SessionHandle) {
        if let Some(entry) = self.slots.get_mut(session) {
            self.held -= core::mem::take(&mut entry.counted);
        }
    }

    /// The next session to end because memory is used up, and its carrier. Sessions whose bytes have been unread for
    /// some time end until an eighth of the bound is free; others end only until the bound is met.
    #[must_use]
    pub(crate) fn poll_overflow(&mut self) -> Option<(SessionHandle, Option<C>)> {
        if self.overflowing.is_empty() && self.held > self.limits.memory_bytes_max {
            self.overflowing = self.sessions_to_end();
        }
        while let Some(session) = self.overflowing.pop() {
            if let Some(entry) = self.slots.get(session) {
                return Some((session, entry.carrier));
            }
        }
        None
    }

    fn sessions_to_end(&self) -> Vec<SessionHandle> {
        let mut holders: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, entry)| entry.counted > 0)
            .map(|(session, entry)| {
                let age = self.now.since(entry.unread_since).min(AGE_MAX).as_micros();
                ((entry.counted as u128 * age, entry.counted), session)
            })
            .collect();
        holders.sort_unstable_by_key(|(rank, _)| Reverse(*rank));
        let (bound, target) = (self.limits.memory_bytes_max, self.limits.memory_bytes_max / 8 * 7);
        let (mut held_bytes, mut chosen) = (self.held, Vec::new());
        for ((bytes_times_age, bytes), session) in holders {
            if held_bytes <= if bytes_times_age > 0 { target } else { bound } {
                break;
            }
            held_bytes -= bytes;
            chosen.push(session);
        }
        chosen.reverse();
        chosen
    }
}
