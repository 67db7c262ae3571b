//! Receiving direction of one connection: credit granted, bytes received and consumed.

use spillway_wire::CloseReason;
use spillway_wire::session::Acknowledge;

use crate::error::ConsumedTooMuch;

/// A new *credit* is sent after this many bytes were consumed, or half the window if that is less.
const CREDIT_STEP_BYTES: u64 = 64 * 1024;

#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    /// Stream offset: bytes received so far.
    received: u64,
    /// Stream offset: bytes that the application has consumed.
    consumed: u64,
    /// Stream offset up to which the peer may send.
    limit: u64,
    window: u64,
    is_finished: bool,
    acknowledging: Acknowledging,
}

/// Whether the server confirms received requests to the helper by *acknowledge*. A helper that has enabled this sends
/// the TCP acknowledgement of a client's request only after the server's *acknowledge*, so that no acknowledged request
/// is lost when the helper fails (PostMan §4.2). When all bytes of one read have been processed, one *acknowledge*
/// joins the batch of the first replies, so it leaves as early as the server's own TCP acknowledgement would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acknowledging {
    /// The helper has not enabled acknowledgements.
    Off,
    /// All received requests are acknowledged.
    UpToDate,
    /// Requests were received since the last acknowledgement.
    Due,
}

impl Incoming {
    pub(super) fn new(window: u64) -> Incoming {
        Incoming {
            received: 0,
            consumed: 0,
            limit: window,
            window,
            is_finished: false,
            acknowledging: Acknowledging::Off,
        }
    }

    /// For a session's carrier: without a limit, because the session checks its own credit.
    pub(super) fn unlimited() -> Incoming {
        Incoming { limit: u64::MAX, ..Incoming::new(0) }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.received
    }

    /// Bytes received that the application has not consumed.
    pub(crate) fn unconsumed(&self) -> u64 {
        self.received - self.consumed
    }

    /// Counts received bytes. Fails, without counting them, if they follow *finish* or exceed the peer's credit.
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

    /// The peer has finished. Fails if `offset` differs from the number of bytes received.
    pub(crate) fn finish(&mut self, offset: u64) -> Result<(), CloseReason> {
        if self.received != offset {
            return Err(CloseReason::Protocol);
        }
        self.is_finished = true;
        Ok(())
    }

    /// Raises the window; a smaller window is ignored.
    pub(crate) fn raise_window(&mut self, window: u32) {
        self.window = self.window.max(u64::from(window));
    }

    /// The application has consumed `bytes`. Returns the new limit when a *credit* is due.
    pub(crate) fn consume(&mut self, bytes: usize) -> Result<Option<u64>, ConsumedTooMuch> {
        let unconsumed = self.unconsumed();
        if bytes as u64 > unconsumed {
            return Err(ConsumedTooMuch { bytes, unconsumed });
        }
        self.consumed += bytes as u64;
        let limit = self.consumed.saturating_add(self.window);
        // A session's carrier has the largest limit and no window, so its credit is never raised here.
        let raised_by = limit.saturating_sub(self.limit);
        if self.is_finished || raised_by < CREDIT_STEP_BYTES.min(self.window / 2).max(1) {
            return Ok(None);
        }
        self.limit = limit;
        Ok(Some(limit))
    }

    pub(crate) fn enable_acknowledgements(&mut self) {
        self.acknowledging = Acknowledging::UpToDate;
    }

    /// Requests were received. Returns whether they are the first since the last acknowledgement.
    pub(crate) fn mark_acknowledge_due(&mut self) -> bool {
        let is_first = self.acknowledging == Acknowledging::UpToDate;
        if is_first {
            self.acknowledging = Acknowledging::Due;
        }
        is_first
    }

    pub(crate) fn take_acknowledge(&mut self) -> Option<Acknowledge> {
        if self.acknowledging != Acknowledging::Due {
            return None;
        }
        self.acknowledging = Acknowledging::UpToDate;
        Some(Acknowledge {
            received: self.received,
            finish_received: self.is_finished,
            requests_answer: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_raised_once_per_64_kib() {
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
    fn credit_of_a_small_window_is_raised_after_half_of_it() {
        let mut incoming = Incoming::new(10);
        assert_eq!(incoming.receive(10), Ok(()));
        assert_eq!(incoming.consume(4), Ok(None));
        assert_eq!(incoming.consume(1), Ok(Some(15)));
    }

    #[test]
    fn consuming_more_than_was_received_fails_and_grants_no_credit() {
        let mut incoming = Incoming::new(10);
        assert_eq!(incoming.receive(6), Ok(()));
        assert_eq!(incoming.consume(2), Ok(None));
        assert_eq!(incoming.consume(5), Err(ConsumedTooMuch { bytes: 5, unconsumed: 4 }));
        assert_eq!(incoming.consume(usize::MAX), Err(ConsumedTooMuch { bytes: usize::MAX, unconsumed: 4 }));
        assert_eq!(incoming.receive(4), Ok(()));
        assert_eq!(incoming.receive(1), Err(CloseReason::OverCredit), "the credit should not change");
        assert_eq!(incoming.consume(8), Ok(Some(20)), "later consumption should count");
    }

    #[test]
    fn bytes_of_a_carrier_are_not_limited_by_credit() {
        let mut carrier = Incoming::unlimited();
        assert_eq!(carrier.consume(0), Ok(None));
        assert_eq!(carrier.receive(100), Ok(()));
        assert_eq!(carrier.consume(100), Ok(None));
    }

    #[test]
    fn offsets_near_u64_max_do_not_overflow() {
        let mut incoming = Incoming::new(u64::from(u32::MAX));
        (incoming.received, incoming.consumed, incoming.limit) = (u64::MAX - 1, u64::MAX - 9, u64::MAX);
        assert_eq!(incoming.receive(1), Ok(()));
        assert_eq!(incoming.receive(1), Err(CloseReason::OverCredit));
        assert_eq!(incoming.consume(5), Ok(None));
    }

    #[test]
    fn finish_must_match_the_received_bytes_and_ends_the_stream() {
        let mut incoming = Incoming::new(10);
        assert_eq!(incoming.receive(4), Ok(()));
        assert_eq!(incoming.finish(3), Err(CloseReason::Protocol));
        assert_eq!(incoming.finish(4), Ok(()));
        assert_eq!(incoming.receive(1), Err(CloseReason::Protocol));
    }

    #[test]
    fn received_requests_are_acknowledged_once() {
        let mut incoming = Incoming::new(10);
        assert!(
            !incoming.mark_acknowledge_due(),
            "acknowledgements should be off until the helper requests them"
        );
        incoming.enable_acknowledgements();
        assert_eq!(incoming.receive(4), Ok(()));
        assert!(
            incoming.mark_acknowledge_due() && !incoming.mark_acknowledge_due(),
            "an acknowledgement should be due once"
        );
        let acknowledge = Acknowledge { received: 4, finish_received: false, requests_answer: false };
        assert_eq!(incoming.take_acknowledge(), Some(acknowledge));
        assert_eq!(incoming.take_acknowledge(), None);
    }
}
