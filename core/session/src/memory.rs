//! The memory of all sessions of a server, and which sessions end when it exceeds its bound.

use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use crate::slots::SessionHandle;
use crate::table::Sessions;

/// Sessions end in the order of held bytes × age of unread bytes, largest first. Greater ages count as this one.
const AGE_MAX: Duration = Duration::from_secs(2);

impl<C: Copy + PartialEq> Sessions<C> {
    /// Updates the table's memory count; called after each change to a session's streams.
    pub(crate) fn count(&mut self, session: SessionHandle) {
        let now = self.now;
        let Some(known) = self.slots.get_mut(session) else { return };
        let held = known.stream.held();
        if known.stream.acknowledged() >= known.unread_mark {
            (known.unread_mark, known.unread_since) = (known.stream.written(), now);
        }
        self.held = self.held - known.counted + held;
        known.counted = held;
    }

    /// The bound of [`TableLimits::memory_bytes_max`](crate::TableLimits::memory_bytes_max).
    pub fn memory_bytes_max(&self) -> usize {
        self.limits.memory_bytes_max
    }

    /// Removes a session that is about to end from the memory count.
    pub(crate) fn uncount(&mut self, session: SessionHandle) {
        if let Some(known) = self.slots.get_mut(session) {
            self.held -= core::mem::take(&mut known.counted);
        }
    }

    /// The next session to end because memory is used up, and its carrier. Sessions with old unread bytes end until an
    /// eighth of the bound is free; others only until the rest is within the bound.
    #[must_use]
    pub(crate) fn poll_overflow(&mut self) -> Option<(SessionHandle, Option<C>)> {
        if self.overflowing.is_empty() && self.held > self.limits.memory_bytes_max {
            self.overflowing = self.who_overflows();
        }
        while let Some(session) = self.overflowing.pop() {
            if let Some(known) = self.slots.get(session) {
                return Some((session, known.carrier));
            }
        }
        None
    }

    fn who_overflows(&self) -> Vec<SessionHandle> {
        let mut holders: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, known)| known.counted > 0)
            .map(|(session, known)| {
                let age = self.now.since(known.unread_since).min(AGE_MAX).as_micros();
                ((known.counted as u128 * age, known.counted), session)
            })
            .collect();
        holders.sort_unstable_by_key(|(rank, _)| Reverse(*rank));
        let (bound, enough) = (self.limits.memory_bytes_max, self.limits.memory_bytes_max / 8 * 7);
        let (mut left, mut chosen) = (self.held, Vec::new());
        for ((age_and_bytes, bytes), session) in holders {
            if left <= if age_and_bytes > 0 { enough } else { bound } {
                break;
            }
            left -= bytes;
            chosen.push(session);
        }
        chosen.reverse();
        chosen
    }
}
