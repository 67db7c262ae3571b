//! What a server's sessions hold together, and which of them end when that is too much.

use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use crate::slots::SessionHandle;
use crate::table::Sessions;

/// Who holds much for long ends first. Beyond this age, the amount alone counts.
const AGE_MAX: Duration = Duration::from_secs(2);

impl<C: Copy + PartialEq> Sessions<C> {
    /// Brings the table's memory up to date after anything that may have changed a session's.
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

    /// The bound, as of [`TableLimits`](crate::TableLimits).
    pub fn memory_bytes_max(&self) -> usize {
        self.limits.memory_bytes_max
    }

    /// A session is about to end: nothing of it counts any more.
    pub(crate) fn uncount(&mut self, session: SessionHandle) {
        if let Some(known) = self.slots.get_mut(session) {
            self.held -= core::mem::take(&mut known.counted);
        }
    }

    /// The next session that ends because memory is used up, and its carrier: until an eighth is free, or, where nobody has
    /// kept anything waiting, until the rest is within the bound.
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
