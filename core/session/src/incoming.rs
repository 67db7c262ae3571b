//! The receiving direction of a session: offsets, acknowledgements and credit.

use core::time::Duration;

use spillway_batch::ConsumedTooMuch;
use spillway_transport::Time;
use spillway_wire::session::Acknowledge;

/// Acknowledgements and credit are sent after at most this many bytes (or half the window, if that is less).
const TELL_BYTES: u64 = 64 * 1024;
/// Minimum interval of acknowledgements that go along with data, because each costs both ends as much as a small message.
/// Shorter than half of [`Patience::floor`](crate::Patience), after which the other end would ask for an acknowledgement.
const TELL_INTERVAL: Duration = Duration::from_millis(40);
/// Delay of an acknowledgement without data in the other direction: only the sender's memory waits for it.
const TELL_ALONE_AFTER: Duration = Duration::from_millis(100);

/// One direction of a session at its receiver. All offsets count bytes since the session began.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    received: u64,
    consumed: u64,
    window: u64,
    /// The last credit sent: the other end may send up to this offset.
    limit: u64,
    /// The last offset acknowledged to the other end.
    told: u64,
    told_at: Option<Time>,
    /// The offset of the stream's end, once a *finish* has arrived.
    end: Option<u64>,
    end_told: bool,
    /// When the first byte or *finish* arrived that is not acknowledged yet.
    owed_since: Option<Time>,
    /// The other end asked for an acknowledgement at once.
    asked: bool,
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
            told: 0,
            told_at: None,
            end: None,
            end_told: false,
            owed_since: None,
            asked: false,
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

    /// The application reads no more: neither unread bytes nor later ones.
    pub(crate) fn discard(&mut self) {
        self.is_discarded = true;
        self.consumed = self.received;
    }

    pub(crate) fn is_discarded(&self) -> bool {
        self.is_discarded
    }

    /// The stream ends at this offset. Returns whether the end was unknown.
    pub(crate) fn finish(&mut self, now: Time, offset: u64) -> Result<bool, Violation> {
        if offset != self.received || self.end.is_some_and(|end| end != offset) {
            return Err(Violation::AfterEnd);
        }
        let news = self.end.replace(offset).is_none();
        if news {
            self.owed_since.get_or_insert(now);
        }
        Ok(news)
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

    /// The new credit, when it is time to send it.
    #[must_use]
    pub(crate) fn poll_credit(&mut self) -> Option<u64> {
        let limit = self.wanted_limit();
        if self.end.is_some() || limit - self.limit < self.tell_bytes() {
            return None;
        }
        self.limit = limit;
        Some(limit)
    }

    fn wanted_limit(&self) -> u64 {
        self.consumed.saturating_add(self.window).max(self.limit)
    }

    /// The acknowledgement, when it is time to send it. `along`: data leaves in the other direction now.
    #[must_use]
    pub(crate) fn poll_acknowledge(&mut self, now: Time, along: bool) -> Option<Acknowledge> {
        let is_due =
            self.asked || self.owed_since.is_some_and(|since| self.is_worth_telling(now, since, along));
        if !is_due {
            return None;
        }
        self.tell(now);
        Some(Acknowledge { received: self.received, finish_received: self.end.is_some(), answer: false })
    }

    fn is_worth_telling(&self, now: Time, since: Time, along: bool) -> bool {
        let seldom = self.told_at.is_none_or(|told| now.since(told) >= TELL_INTERVAL);
        self.received - self.told >= self.tell_bytes()
            || self.end.is_some() != self.end_told
            || (along && seldom)
            || now.since(since) >= TELL_ALONE_AFTER
    }

    fn tell_bytes(&self) -> u64 {
        TELL_BYTES.min(self.window / 2).max(1)
    }

    /// When [`poll_acknowledge`](Self::poll_acknowledge) yields an acknowledgement even without data in the other direction.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.owed_since.map(|since| since + TELL_ALONE_AFTER)
    }

    /// The other end wants an acknowledgement at once.
    pub(crate) fn ask(&mut self) {
        self.asked = true;
    }

    /// The position for a new carrier: `(received, credit, finish received)`. The caller sends it, so it counts as
    /// acknowledged.
    pub(crate) fn restate(&mut self, now: Time) -> (u64, u64, bool) {
        self.tell(now);
        self.limit = self.wanted_limit();
        (self.received, self.limit, self.end.is_some())
    }

    fn tell(&mut self, now: Time) {
        self.told = self.received;
        self.told_at = Some(now);
        self.end_told = self.end.is_some();
        self.owed_since = None;
        self.asked = false;
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
