//! Events of a connection.

use std::io;
use std::net::SocketAddr;

use crate::error::MoveError;

/// A connection's carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// Plain TCP to this address.
    Direct(SocketAddr),
    /// A link to this link port.
    Link(SocketAddr),
}

/// An event of a connection. The loss of the carrier in use causes no event: `receive` and `send` return an error.
#[derive(Debug)]
pub enum Event {
    /// The connection now uses this carrier, its first or a new one. `send` works again.
    Moved(Carrier),
    /// The move, or the first connection, failed. The previous carrier stays in use.
    MoveFailed {
        /// The intended carrier.
        to: Carrier,
        /// The reason.
        why: MoveError,
    },
    /// The carrier of [`prepare_move`](crate::Connection::prepare_move) is ready. Call
    /// [`complete_move`](crate::Connection::complete_move) when no reply is pending.
    Prepared(Carrier),
    /// `send` has room again after a partial send.
    Room,
    /// Call `receive`: the connection holds bytes or a result that epoll does not report.
    Readable,
    /// The idle direct connection is lost. The next move to the server opens a new one.
    IdleDirectLost(io::Error),
    /// The helper or the server drains: move the connection away.
    Drain {
        /// Time left in ms; 0: move at once.
        deadline_ms: u32,
    },
}

/// Pending events: at most one of each kind, so that their number is bounded.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Whether any event may be pending, so that the common case needs a single test.
    may_be_pending: bool,
    move_outcome: Option<Event>,
    direct_lost: Option<io::Error>,
    drain: Option<u32>,
    room: bool,
    readable: bool,
}

impl Events {
    /// Records that a move has ended or is prepared. Replaces an earlier event of this kind that was not polled.
    pub(crate) fn set_move_outcome(&mut self, event: Event) {
        self.may_be_pending = true;
        self.move_outcome = Some(event);
    }

    pub(crate) fn set_direct_lost(&mut self, error: io::Error) {
        self.may_be_pending = true;
        self.direct_lost = Some(error);
    }

    pub(crate) fn set_drain(&mut self, deadline_ms: u32) {
        self.may_be_pending = true;
        self.drain = Some(deadline_ms);
    }

    pub(crate) fn set_room(&mut self) {
        self.may_be_pending = true;
        self.room = true;
    }

    pub(crate) fn set_readable(&mut self) {
        self.may_be_pending = true;
        self.readable = true;
    }

    pub(crate) fn poll(&mut self) -> Option<Event> {
        if !self.may_be_pending {
            return None;
        }
        if let Some(event) = self.move_outcome.take() {
            return Some(event);
        }
        if let Some(error) = self.direct_lost.take() {
            return Some(Event::IdleDirectLost(error));
        }
        if let Some(deadline_ms) = self.drain.take() {
            return Some(Event::Drain { deadline_ms });
        }
        if std::mem::take(&mut self.room) {
            return Some(Event::Room);
        }
        self.may_be_pending = false;
        std::mem::take(&mut self.readable).then_some(Event::Readable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_events_are_returned_once() {
        let mut events = Events::default();
        assert!(events.poll().is_none());
        for _ in 0..2 {
            events.set_room();
            events.set_readable();
            events.set_drain(7);
        }
        assert!(matches!(events.poll(), Some(Event::Drain { deadline_ms: 7 })));
        assert!(matches!(events.poll(), Some(Event::Room)));
        assert!(matches!(events.poll(), Some(Event::Readable)));
        assert!(events.poll().is_none());
    }
}
