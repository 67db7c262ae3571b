//! One virtual connection, as one end of a link sees it.

use alloc::boxed::Box;
use core::net::SocketAddr;

use spillway_wire::CloseReason;

use crate::error::ConsumedTooMuch;
use crate::kept::Kept;
use crate::taken::Taking;

/// Credit is restated after this many bytes were consumed (or half the window, if that is less): at most one
/// *credit* per connection per 64 KB.
const RESTATE_BYTES: u64 = 64 * 1024;

/// Both directions and who has closed.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    pub(crate) closed_here: bool,
    pub(crate) closed_there: bool,
    /// At a server's end: the client's address.
    pub(crate) client: Option<SocketAddr>,
    /// It carries a session, which keeps to credit and offsets itself.
    pub(crate) is_carrier: bool,
    /// The peer broke a rule: nothing more is delivered, and this is what we say when the application closes.
    pub(crate) broken: Option<CloseReason>,
}

/// Bytes that we send.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// Stream offset: bytes sent so far.
    pub(crate) sent: u64,
    /// Stream offset up to which the peer lets us send.
    limit: u64,
    pub(crate) finished: bool,
    /// Somebody was told that there is no room and waits to hear that there is.
    pub(crate) wants_room: bool,
    /// It waits for the link's pending bytes to go, not only for credit.
    pub(crate) blocked: bool,
    /// What the client's TCP has not acknowledged, where the helper tells of that.
    pub(crate) kept: Option<Box<Kept>>,
}

/// Bytes that we receive.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    /// Stream offset: bytes received so far.
    pub(crate) received: u64,
    /// Stream offset up to which the application has taken them.
    consumed: u64,
    /// Stream offset up to which we told the peer that it may send.
    limit: u64,
    window: u64,
    pub(crate) finished: bool,
    /// Where the helper is told what was taken.
    pub(crate) taking: Option<Taking>,
}

impl Connection {
    /// `limit`: how much the peer lets us send at first. `window`: how much we let it send.
    pub(crate) fn new(limit: u64, window: u32) -> Connection {
        let window = u64::from(window);
        Connection {
            outgoing: Outgoing {
                sent: 0,
                limit,
                finished: false,
                wants_room: false,
                blocked: false,
                kept: None,
            },
            incoming: Incoming {
                received: 0,
                consumed: 0,
                limit: window,
                window,
                finished: false,
                taking: None,
            },
            closed_here: false,
            closed_there: false,
            client: None,
            is_carrier: false,
            broken: None,
        }
    }

    /// One that carries a session.
    pub(crate) fn carrier() -> Connection {
        let mut connection = Connection::new(u64::MAX, 0);
        connection.incoming.limit = u64::MAX;
        connection.is_carrier = true;
        connection
    }

    /// Whether bytes still pass.
    pub(crate) fn is_open(&self) -> bool {
        !self.closed_here && !self.closed_there && self.broken.is_none()
    }

    /// Whether both ends have closed, so that the id is free.
    pub(crate) fn is_over(&self) -> bool {
        self.closed_here && self.closed_there
    }
}

impl Outgoing {
    /// Bytes that credit allows now, and the bound of what is kept.
    pub(crate) fn credit(&self) -> usize {
        let credit = usize::try_from(self.limit.saturating_sub(self.sent)).unwrap_or(usize::MAX);
        self.kept.as_ref().map_or(credit, |kept| credit.min(kept.room()))
    }

    /// These bytes were given to the link.
    pub(crate) fn sent(&mut self, bytes: &[u8]) {
        self.sent += bytes.len() as u64;
        if let Some(kept) = &mut self.kept {
            kept.push(bytes);
        }
    }

    /// The peer restates its absolute limit. Returns whether it is higher than before: a lower one is an old one, and
    /// changes nothing.
    pub(crate) fn raise_limit(&mut self, limit: u64) -> bool {
        let is_higher = limit > self.limit;
        self.limit = self.limit.max(limit);
        is_higher
    }
}

impl Incoming {
    /// Bytes received that the application has not taken.
    pub(crate) fn unconsumed(&self) -> u64 {
        self.received - self.consumed
    }

    /// Whether `bytes` more keep within the credit we gave, and if so counts them.
    pub(crate) fn receive(&mut self, bytes: usize) -> bool {
        match self.received.checked_add(bytes as u64) {
            Some(received) if received <= self.limit => {
                self.received = received;
                true
            }
            _ => false,
        }
    }

    /// The peer may be further ahead from now on; never less far.
    pub(crate) fn widen(&mut self, window: u32) {
        self.window = self.window.max(u64::from(window));
    }

    /// The application has taken `bytes`. Returns the new limit when it is time to tell the peer.
    pub(crate) fn consume(&mut self, bytes: usize) -> Result<Option<u64>, ConsumedTooMuch> {
        let unconsumed = self.unconsumed();
        if bytes as u64 > unconsumed {
            return Err(ConsumedTooMuch { bytes, unconsumed });
        }
        self.consumed += bytes as u64;
        let limit = self.consumed.saturating_add(self.window);
        if self.finished || limit - self.limit < RESTATE_BYTES.min(self.window / 2).max(1) {
            return Ok(None);
        }
        self.limit = limit;
        Ok(Some(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_restated_once_per_64_kilobytes() {
        let mut connection = Connection::new(0, 256 * 1024);
        assert!(connection.incoming.receive(256 * 1024));
        assert!(!connection.incoming.receive(1), "one byte over the credit");
        assert_eq!(connection.incoming.consume(65_535), Ok(None));
        assert_eq!(connection.incoming.consume(1), Ok(Some(65_536 + 256 * 1024)));
        assert_eq!(connection.incoming.consume(65_535), Ok(None));
        assert!(connection.incoming.receive(65_536));
        assert!(!connection.incoming.receive(1));
    }

    #[test]
    fn a_small_window_is_restated_by_halves() {
        let mut connection = Connection::new(0, 10);
        assert!(connection.incoming.receive(10));
        assert_eq!(connection.incoming.consume(4), Ok(None));
        assert_eq!(connection.incoming.consume(1), Ok(Some(15)));
    }

    #[test]
    fn more_than_was_received_is_an_error_and_gives_no_credit() {
        let mut incoming = Connection::new(0, 10).incoming;
        assert!(incoming.receive(6));
        assert_eq!(incoming.consume(2), Ok(None));
        assert_eq!(incoming.consume(5), Err(ConsumedTooMuch { bytes: 5, unconsumed: 4 }));
        assert_eq!(incoming.consume(usize::MAX), Err(ConsumedTooMuch { bytes: usize::MAX, unconsumed: 4 }));
        assert!(incoming.receive(4) && !incoming.receive(1), "the limit is what it was");
        assert_eq!(incoming.consume(8), Ok(Some(20)), "and the count goes on");
    }

    #[test]
    fn limits_only_rise_and_reach_the_end_of_numbers() {
        let mut outgoing = Connection::new(10, 0).outgoing;
        outgoing.sent = 4;
        outgoing.raise_limit(7);
        assert_eq!(outgoing.credit(), 6);
        outgoing.raise_limit(u64::MAX);
        assert_eq!(outgoing.credit() as u64, u64::MAX - 4);
        let mut incoming = Connection::new(0, u32::MAX).incoming;
        (incoming.received, incoming.consumed, incoming.limit) = (u64::MAX - 1, u64::MAX - 9, u64::MAX);
        assert!(incoming.receive(1));
        assert!(!incoming.receive(1));
        assert_eq!(incoming.consume(5), Ok(None));
    }
}
