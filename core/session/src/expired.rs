//! Sessions that a server's table ends by itself: they have waited too long, or hold too much.

use spillway_transport::Time;

use crate::slots::SessionHandle;
use crate::table::Sessions;

/// Something to tell the application, or to do with a carrier.
#[derive(Debug, PartialEq, Eq)]
pub enum Expired<C> {
    /// Its client did not return in time: the application's connection is reset. The session is no more.
    Abandoned(SessionHandle),
    /// A closed session whose client did not take the rest in time, or before the table's memory was used up. Its carrier,
    /// if it has one, is to be closed. The application has closed it, and is to hear nothing.
    Lingered(SessionHandle, Option<C>),
    /// Its client did not read, and the table's memory is used up: the application's connection is reset, and its
    /// carrier, if it has one, is to be closed. The session is no more.
    Overflowed(SessionHandle, Option<C>),
}

impl<C: Copy + PartialEq> Sessions<C> {
    /// When to call [`poll_expired`](Self::poll_expired) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.is_overflowing() {
            return Some(self.now);
        }
        self.detached.poll_timeout().into_iter().chain(self.closed.poll_timeout()).min()
    }

    /// A session that has waited too long, or holds too much. Ask until `None`.
    #[must_use]
    pub fn poll_expired(&mut self, now: Time) -> Option<Expired<C>> {
        self.pass(now);
        if let Some((session, carrier)) = self.poll_overflow() {
            let was_closed = self.slots.get(session).is_some_and(|known| known.stream.is_closed_here());
            self.end(now, session, None);
            return Some(if was_closed {
                Expired::Lingered(session, carrier)
            } else {
                Expired::Overflowed(session, carrier)
            });
        }
        while let Some(session) = self.closed.pop(now) {
            if let Some(known) = self.slots.get(session) {
                let carrier = known.carrier;
                self.end(now, session, None);
                return Some(Expired::Lingered(session, carrier));
            }
        }
        while let Some((session, epoch)) = self.detached.pop(now) {
            let Some(known) = self.slots.get(session) else { continue };
            // It may have had a carrier since, and lost it again.
            if known.is_detached_since(epoch) {
                let was_closed = known.stream.is_closed_here();
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
