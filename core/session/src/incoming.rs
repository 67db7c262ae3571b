//! The receiving direction of a session: offsets, acknowledgements and credit.

use core::time::Duration;

use spillway_batch::ConsumedTooMuch;
use spillway_transport::Time;
use spillway_wire::session::Acknowledge;

/// Acknowledgements and credit are sent after at most this many bytes (or half the window, if that is less).
const ACKNOWLEDGE_BYTES: u64 = 64 * 1024;
/// Minimum interval of acknowledgements sent together with data, because each costs both ends as much as a small
/// message. Shorter than half of [`CarrierTimeouts::floor`](crate::CarrierTimeouts), after which
/// the other end would send a probe.
const ACKNOWLEDGE_INTERVAL_MIN: Duration = Duration::from_millis(40);
/// Delay of an acknowledgement without data in the other direction. It may be long: the acknowledgement only frees
/// memory of the sender.
const ACKNOWLEDGE_DELAY: Duration = Duration::from_millis(100);

/// One direction of a session at its receiver. All offsets count bytes since the session began.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    received: u64,
    consumed: u64,
    window: u64,
    /// The last credit sent: the other end may send up to this offset.
    limit: u64,
    /// The last offset acknowledged to the other end.
    acknowledged: u64,
    acknowledged_at: Option<Time>,
    /// The offset of the stream's end, once a *finish* has arrived.
    end: Option<u64>,
    is_end_acknowledged: bool,
    /// Arrival of the first byte or *finish* that is not acknowledged yet.
    owed_since: Option<Time>,
    /// The other end requested an acknowledgement at once.
    acknowledgement_requested: bool,
    /// The application reads no more: received bytes count as consumed.
    is_discarded: bool,
}

/// A protocol violation by the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// More bytes than the credit allowed.
    OverCredit,
    /// Bytes after the *finish*, or a *finish* whose offset is not the number of bytes received.
    AfterEnd,
}

impl Incoming {
    /// `window`: bytes that may be received and not consumed.
    pub(crate) fn new(window: u32) -> Incoming {
        let window = u64::from(window);
        Incoming {
            received: 0,
            consumed: 0,
            window,
            limit: window,
            acknowledged: 0,
            acknowledged_at: None,
            end: None,
            is_end_acknowledged: false,
            owed_since: None,
            acknowledgement_requested: false,
            is_discarded: false,
        }
    }

    pub(crate) fn receive(&mut self, now: Time, bytes: usize) -> Result<(), Violation> {
        if self.end.is_some() {
            return Err(Violation::AfterEnd);
        }
        match self.received.checked_add(bytes as u64) {
            Some(received) if received <= self.limit => self.received = received,
            _ => return Err(Violation::OverCredit),
        }
        self.owed_since.get_or_insert(now);
        if self.is_discarded {
            self.consumed = self.received;
        }
        Ok(())
    }

    /// Discards unread bytes and later ones: the application does not read any more.
    pub(crate) fn discard(&mut self) {
        self.is_discarded = true;
        self.consumed = self.received;
    }

    pub(crate) fn is_discarded(&self) -> bool {
        self.is_discarded
    }

    /// Records that the stream ends at this offset. Returns whether the end was unknown before.
    pub(crate) fn finish(&mut self, now: Time, offset: u64) -> Result<bool, Violation> {
        if offset != self.received || self.end.is_some_and(|end| end != offset) {
            return Err(Violation::AfterEnd);
        }
        let is_new = self.end.replace(offset).is_none();
        if is_new {
            self.owed_since.get_or_insert(now);
        }
        Ok(is_new)
    }

    /// The application has read this many bytes.
    pub(crate) fn consume(&mut self, bytes: usize) -> Result<(), ConsumedTooMuch> {
        if self.is_discarded {
            return Ok(());
        }
        let unconsumed = self.received - self.consumed;
        if bytes as u64 > unconsumed {
            return Err(ConsumedTooMuch { bytes, unconsumed });
        }
        self.consumed += bytes as u64;
        Ok(())
    }

    /// The new credit, if it is due.
    #[must_use]
    pub(crate) fn poll_credit(&mut self) -> Option<u64> {
        let limit = self.new_limit();
        if self.end.is_some() || limit - self.limit < self.acknowledge_bytes() {
            return None;
        }
        self.limit = limit;
        Some(limit)
    }

    fn new_limit(&self) -> u64 {
        self.consumed.saturating_add(self.window).max(self.limit)
    }

    /// The acknowledgement, if it is due. `with_data`: data is sent in the other direction now.
    #[must_use]
    pub(crate) fn poll_acknowledge(&mut self, now: Time, with_data: bool) -> Option<Acknowledge> {
        let is_due = self.acknowledgement_requested
            || self.owed_since.is_some_and(|since| self.is_acknowledgement_due(now, since, with_data));
        if !is_due {
            return None;
        }
        self.mark_acknowledged(now);
        Some(Acknowledge {
            received: self.received,
            finish_received: self.end.is_some(),
            requests_answer: false,
        })
    }

    fn is_acknowledgement_due(&self, now: Time, since: Time, with_data: bool) -> bool {
        let interval_passed = self
            .acknowledged_at
            .is_none_or(|acknowledged| now.since(acknowledged) >= ACKNOWLEDGE_INTERVAL_MIN);
        self.received - self.acknowledged >= self.acknowledge_bytes()
            || self.end.is_some() != self.is_end_acknowledged
            || (with_data && interval_passed)
            || now.since(since) >= ACKNOWLEDGE_DELAY
    }

    fn acknowledge_bytes(&self) -> u64 {
        ACKNOWLEDGE_BYTES.min(self.window / 2).max(1)
    }

    /// When [`poll_acknowledge`](Self::poll_acknowledge) returns an acknowledgement even without data to send.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.owed_since.map(|since| since + ACKNOWLEDGE_DELAY)
    }

    /// Records that the other end requested an acknowledgement at once.
    pub(crate) fn request_acknowledgement(&mut self) {
        self.acknowledgement_requested = true;
    }

    /// The position for a new carrier: `(received, credit, finish received)`. Counts as an acknowledgement, because the
    /// caller sends the position.
    pub(crate) fn position(&mut self, now: Time) -> (u64, u64, bool) {
        self.mark_acknowledged(now);
        self.limit = self.new_limit();
        (self.received, self.limit, self.end.is_some())
    }

    fn mark_acknowledged(&mut self, now: Time) {
        self.acknowledged = self.received;
        self.acknowledged_at = Some(now);
        self.is_end_acknowledged = self.end.is_some();
        self.owed_since = None;
        self.acknowledgement_requested = false;
    }

    pub(crate) fn unconsumed(&self) -> u64 {
        self.received - self.consumed
    }

    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.end.is_some()
    }
}
