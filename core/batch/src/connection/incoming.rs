//! Bytes that we receive on one connection.

use spillway_wire::CloseReason;
use spillway_wire::session::Acknowledge;

use crate::error::ConsumedTooMuch;

/// Credit is restated after this many bytes were consumed (or half the window, if that is less): at most one
/// *credit* per connection per 64 KB.
const RESTATE_BYTES: u64 = 64 * 1024;

#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    /// Stream offset: bytes received so far.
    received: u64,
    /// Stream offset up to which the application has taken them.
    consumed: u64,
    /// Stream offset up to which we told the peer that it may send.
    limit: u64,
    window: u64,
    is_finished: bool,
    taking: Taking,
}

/// What a server has taken of its client's requests, told to the helper where that is asked for: then the helper's own TCP
/// may acknowledge them to the client, and a helper that dies has acknowledged nothing that is lost (PostMan §4.2).
///
/// It is told for each input at its end, and so rides in the batch that has the first replies: a client's TCP hears of it as
/// soon as it would have from the server's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taking {
    /// The helper has not asked.
    Untold,
    /// All of it has been told.
    Told,
    /// Something was taken since it was told last.
    Owed,
}

impl Incoming {
    /// `window`: how much we let the peer send.
    pub(super) fn new(window: u64) -> Incoming {
        Incoming {
            received: 0,
            consumed: 0,
            limit: window,
            window,
            is_finished: false,
            taking: Taking::Untold,
        }
    }

    /// Somebody else keeps to credit.
    pub(super) fn unlimited() -> Incoming {
        Incoming { limit: u64::MAX, ..Incoming::new(0) }
    }

    /// Bytes received so far.
    pub(crate) fn offset(&self) -> u64 {
        self.received
    }

    /// Bytes received that the application has not taken.
    pub(crate) fn unconsumed(&self) -> u64 {
        self.received - self.consumed
    }

    /// So many bytes more came.
    ///
    /// # Errors
    /// They come after the end, or are more than the credit we gave; they are not counted.
    #[inline]
    pub(crate) fn receive(&mut self, bytes: usize) -> Result<(), CloseReason> {
        if self.is_finished {
            return Err(CloseReason::Protocol);
        }
        match self.received.checked_add(bytes as u64) {
            Some(received) if received <= self.limit => {
                self.received = received;
                Ok(())
            }
            _ => Err(CloseReason::OverCredit),
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// The peer sends no more.
    ///
    /// # Errors
    /// It has sent another number of bytes than it says.
    pub(crate) fn finish(&mut self, offset: u64) -> Result<(), CloseReason> {
        if self.received != offset {
            return Err(CloseReason::Protocol);
        }
        self.is_finished = true;
        Ok(())
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
        if self.is_finished || limit - self.limit < RESTATE_BYTES.min(self.window / 2).max(1) {
            return Ok(None);
        }
        self.limit = limit;
        Ok(Some(limit))
    }

    /// The helper asks to be told what is taken.
    pub(crate) fn tell_what_is_taken(&mut self) {
        self.taking = Taking::Told;
    }

    /// Something was taken. Whether this is the first since it was told.
    pub(crate) fn owe(&mut self) -> bool {
        let is_first = self.taking == Taking::Told;
        if is_first {
            self.taking = Taking::Owed;
        }
        is_first
    }

    /// What is owed is told now.
    pub(crate) fn pay(&mut self) -> Option<Acknowledge> {
        if self.taking != Taking::Owed {
            return None;
        }
        self.taking = Taking::Told;
        Some(Acknowledge { received: self.received, finish_received: self.is_finished, answer: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_restated_once_per_64_kilobytes() {
        let mut incoming = Incoming::new(256 * 1024);
        assert_eq!(incoming.receive(256 * 1024), Ok(()));
        assert_eq!(incoming.receive(1), Err(CloseReason::OverCredit));
        assert_eq!(incoming.consume(65_535), Ok(None));
        assert_eq!(incoming.consume(1), Ok(Some(65_536 + 256 * 1024)));
        assert_eq!(incoming.consume(65_535), Ok(None));
        assert_eq!(incoming.receive(65_536), Ok(()));
        assert_eq!(incoming.receive(1), Err(CloseReason::OverCredit));
    }

    #[test]
    fn a_small_window_is_restated_by_halves() {
        let mut incoming = Incoming::new(10);
        assert_eq!(incoming.receive(10), Ok(()));
        assert_eq!(incoming.consume(4), Ok(None));
        assert_eq!(incoming.consume(1), Ok(Some(15)));
    }

    #[test]
    fn more_than_was_received_is_an_error_and_gives_no_credit() {
        let mut incoming = Incoming::new(10);
        assert_eq!(incoming.receive(6), Ok(()));
        assert_eq!(incoming.consume(2), Ok(None));
        assert_eq!(incoming.consume(5), Err(ConsumedTooMuch { bytes: 5, unconsumed: 4 }));
        assert_eq!(incoming.consume(usize::MAX), Err(ConsumedTooMuch { bytes: usize::MAX, unconsumed: 4 }));
        assert_eq!(incoming.receive(4), Ok(()));
        assert_eq!(incoming.receive(1), Err(CloseReason::OverCredit), "the limit is what it was");
        assert_eq!(incoming.consume(8), Ok(Some(20)), "and the count goes on");
    }

    #[test]
    fn offsets_reach_the_end_of_numbers() {
        let mut incoming = Incoming::new(u64::from(u32::MAX));
        (incoming.received, incoming.consumed, incoming.limit) = (u64::MAX - 1, u64::MAX - 9, u64::MAX);
        assert_eq!(incoming.receive(1), Ok(()));
        assert_eq!(incoming.receive(1), Err(CloseReason::OverCredit));
        assert_eq!(incoming.consume(5), Ok(None));
    }

    #[test]
    fn nothing_comes_after_the_end_which_is_where_the_peer_says() {
        let mut incoming = Incoming::new(10);
        assert_eq!(incoming.receive(4), Ok(()));
        assert_eq!(incoming.finish(3), Err(CloseReason::Protocol));
        assert_eq!(incoming.finish(4), Ok(()));
        assert_eq!(incoming.receive(1), Err(CloseReason::Protocol));
    }

    #[test]
    fn what_was_taken_is_told_once() {
        let mut incoming = Incoming::new(10);
        assert!(!incoming.owe(), "nobody has asked");
        incoming.tell_what_is_taken();
        assert_eq!(incoming.receive(4), Ok(()));
        assert!(incoming.owe() && !incoming.owe());
        let told = Acknowledge { received: 4, finish_received: false, answer: false };
        assert_eq!(incoming.pay(), Some(told));
        assert_eq!(incoming.pay(), None);
    }
}
