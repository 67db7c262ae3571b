//! What a connection tells its user.

use std::io;
use std::net::SocketAddr;

use crate::error::MoveError;

/// What carries a connection's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// Plain TCP to this address.
    Direct(SocketAddr),
    /// A link to this link port.
    Link(SocketAddr),
}

/// Something that happened. The loss of the carrier in use is no event: `receive` and `send` tell it, as a
/// socket's do.
#[derive(Debug)]
pub enum Event {
    /// The connection uses this carrier from now on: send. The first carrier counts too.
    Moved(Carrier),
    /// The move (or the first connection) failed. What carried the bytes before still does.
    MoveFailed {
        /// Where it should have gone.
        to: Carrier,
        /// Why it did not.
        why: MoveError,
    },
    /// What [`prepare_move`](crate::Connection::prepare_move) asked for is ready: call
    /// [`complete_move`](crate::Connection::complete_move) when no reply is to come any more.
    Prepared(Carrier),
    /// `send` has room again after it took less than it was given.
    Room,
    /// `receive` has something that no socket will report: call it.
    Readable,
    /// The idle direct connection is gone. A move back to direct will connect anew.
    IdleDirectLost(io::Error),
    /// The helper, or the server, wants this connection moved away within this time, in milliseconds.
    Drain {
        /// 0 is at once.
        deadline_ms: u32,
    },
}

/// Events that wait to be asked for: at most one of each kind, so this needs no bound.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Whether there is anything: the one test on the path of every request.
    any: bool,
    settled: Option<Event>,
    direct_lost: Option<io::Error>,
    drain: Option<u32>,
    room: bool,
    readable: bool,
}

impl Events {
    /// A move was settled one way or the other, or is prepared. An earlier word about a move is void.
    pub(crate) fn settled(&mut self, event: Event) {
        self.any = true;
        self.settled = Some(event);
    }

    pub(crate) fn direct_lost(&mut self, error: io::Error) {
        self.any = true;
        self.direct_lost = Some(error);
    }

    pub(crate) fn drain(&mut self, deadline_ms: u32) {
        self.any = true;
        self.drain = Some(deadline_ms);
    }

    pub(crate) fn room(&mut self) {
        self.any = true;
        self.room = true;
    }

    pub(crate) fn readable(&mut self) {
        self.any = true;
        self.readable = true;
    }

    pub(crate) fn poll(&mut self) -> Option<Event> {
        if !self.any {
            return None;
        }
        if let Some(event) = self.settled.take() {
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
        self.any = false;
        std::mem::take(&mut self.readable).then_some(Event::Readable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_told_once() {
        let mut events = Events::default();
        assert!(events.poll().is_none());
        for _ in 0..2 {
            events.room();
            events.readable();
            events.drain(7);
        }
        assert!(matches!(events.poll(), Some(Event::Drain { deadline_ms: 7 })));
        assert!(matches!(events.poll(), Some(Event::Room)));
        assert!(matches!(events.poll(), Some(Event::Readable)));
        assert!(events.poll().is_none());
    }
}
