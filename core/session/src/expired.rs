//! Sessions that a server's table ends because they timed out or hold too much memory.

use spillway_transport::Time;

use crate::slots::SessionHandle;
use crate::table::Sessions;

/// A session that the table has ended, and the action of the driver.
#[derive(Debug, PartialEq, Eq)]
pub enum Expired<C> {
    /// The client did not return in time: reset the application's connection.
    Abandoned(SessionHandle),
    /// The application had closed the session; then the client did not receive the rest in time, or memory
    /// was used up: close the carrier, if any. The application gets no event.
    Lingered(SessionHandle, Option<C>),
    /// Memory is used up, and the client did not read: reset the application's connection, and close the carrier, if
    /// any.
    Overflowed(SessionHandle, Option<C>),
}

impl<C: Copy + PartialEq> Sessions<C> {
    /// When to call [`poll_expired`](Self::poll_expired) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.is_overflowing() {
            return Some(self.now);
        }
        self.detached.poll_timeout().into_iter().chain(self.lingering.poll_timeout()).min()
    }

    /// Ends a session that timed out or holds too much memory. Call until `None`.
    #[must_use]
    pub fn poll_expired(&mut self, now: Time) -> Option<Expired<C>> {
        self.advance_time(now);
        if let Some((session, carrier)) = self.poll_overflow() {
            let was_closed = self.slots.get(session).is_some_and(|entry| entry.stream.is_closed_here());
            self.end(now, session, None);
            return Some(if was_closed {
                Expired::Lingered(session, carrier)
            } else {
                Expired::Overflowed(session, carrier)
            });
        }
        while let Some(session) = self.lingering.pop(now) {
            if let Some(entry) = self.slots.get(session) {
                let carrier = entry.carrier;
                self.end(now, session, None);
                return Some(Expired::Lingered(session, carrier));
            }
        }
        while let Some((session, epoch)) = self.detached.pop(now) {
            let Some(entry) = self.slots.get(session) else { continue };
            // The session may have had another carrier since then, whose loss has a timer of its own.
            if entry.is_detached_since(epoch) {
                let was_closed = entry.stream.is_closed_here();
                self.end(now, session, None);
                return Some(if was_closed {
                    Expired::Lingered(session, None)
                } else {
                    Expired::Abandoned(session)
                });
            }
        }
        None
    }
}
