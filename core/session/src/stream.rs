//! Both directions of a session at one of its ends, and how they close.

use spillway_batch::ConsumedTooMuch;
use spillway_transport::Time;
use spillway_wire::session::{Acknowledge, Position};
use spillway_wire::{CloseReason, Control};

use crate::incoming::{Incoming, Violation};
use crate::outgoing::{OutOfRange, Outgoing};

/// The virtual connection that carries a session now.
pub trait Carrier {
    /// Takes a prefix of these bytes and returns its length.
    fn data(&mut self, bytes: &[u8]) -> usize;
    /// Takes a control message; there is always room for it.
    fn control(&mut self, control: Control);
}

/// Bounds of one end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// Bytes that may be received and not yet consumed by the application.
    pub window_bytes: u32,
    /// Bytes that may be written and not yet acknowledged; they are kept in memory.
    pub kept_bytes_max: usize,
}

impl Default for StreamLimits {
    fn default() -> StreamLimits {
        StreamLimits { window_bytes: 256 * 1024, kept_bytes_max: 256 * 1024 }
    }
}

/// An event of the other end, for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// There is room to write again.
    Room,
    /// The other end sends no more.
    Finished,
    /// The other end has closed, or violated the protocol. Nothing more arrives; close in answer.
    Closed(CloseReason),
}

#[derive(Clone, Debug)]
pub(crate) struct Stream {
    outgoing: Outgoing,
    incoming: Incoming,
    closed_here: Option<CloseReason>,
    /// Our *close* is sent on the present carrier.
    close_sent: bool,
    closed_there: bool,
    /// The other end violated the protocol: the reason of our *close*.
    violation: Option<CloseReason>,
}

impl Stream {
    /// `credit`: the other end's initial credit.
    pub(crate) fn new(limits: StreamLimits, credit: u64) -> Stream {
        Stream {
            outgoing: Outgoing::new(credit, limits.kept_bytes_max),
            incoming: Incoming::new(limits.window_bytes),
            closed_here: None,
            close_sent: false,
            closed_there: false,
            violation: None,
        }
    }

    // Called for the application.

    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        if self.is_open() { self.outgoing.write(bytes) } else { 0 }
    }

    pub(crate) fn finish(&mut self) {
        self.outgoing.finish();
    }

    pub(crate) fn consume(&mut self, bytes: usize) -> Result<(), ConsumedTooMuch> {
        self.incoming.consume(bytes)
    }

    pub(crate) fn close(&mut self, reason: CloseReason) {
        if self.closed_here.is_some() {
            return;
        }
        let reason = self.violation.unwrap_or(reason);
        self.closed_here = Some(reason);
        if reason != CloseReason::Normal || self.closed_there {
            self.outgoing.discard();
        }
    }

    /// Closes, and drops received bytes until our *close* is sent. Otherwise an application at the other end that
    /// writes before it reads could block, and never read the bytes that this end wrote before it closed.
    pub(crate) fn close_and_discard(&mut self, reason: CloseReason) {
        self.close(reason);
        self.incoming.discard();
    }

    // Input from the other end.

    /// Handles received data. `Ok(false)`: drop the bytes, because one end has closed.
    pub(crate) fn receive(&mut self, now: Time, bytes: usize) -> Result<bool, StreamEvent> {
        if self.is_discarding() {
            // The bytes are dropped, so credit violations are ignored.
            let _ = self.incoming.receive(now, bytes);
        }
        if !self.is_open() {
            return Ok(false);
        }
        self.incoming.receive(now, bytes).map(|()| true).map_err(|violation| self.fail_for(violation))
    }

    /// Handles a control message of the present carrier. Messages that do not concern the stream are ignored.
    pub(crate) fn handle(&mut self, now: Time, control: &Control) -> Option<StreamEvent> {
        if self.closed_there || self.violation.is_some() {
            return None;
        }
        match *control {
            Control::Credit(limit) => {
                self.outgoing.raise_credit_limit(limit);
                None
            }
            Control::Acknowledge(acknowledge) => {
                if acknowledge.requests_answer {
                    self.incoming.request_acknowledgement();
                }
                match self.outgoing.acknowledge(acknowledge.received, acknowledge.finish_received) {
                    Ok(room) => (room && self.is_open()).then_some(StreamEvent::Room),
                    Err(OutOfRange) => Some(self.fail(CloseReason::Protocol)),
                }
            }
            Control::Finish(offset) if self.closed_here.is_none() => {
                match self.incoming.finish(now, offset) {
                    Ok(is_new) => is_new.then_some(StreamEvent::Finished),
                    Err(violation) => Some(self.fail_for(violation)),
                }
            }
            Control::Close(reason) => {
                self.closed_there = true;
                // The other end discards further bytes.
                self.outgoing.discard();
                self.closed_here.is_none().then_some(StreamEvent::Closed(reason))
            }
            _ => None,
        }
    }

    fn fail_for(&mut self, violation: Violation) -> StreamEvent {
        self.fail(match violation {
            Violation::OverCredit => CloseReason::OverCredit,
            Violation::AfterEnd => CloseReason::Protocol,
        })
    }

    fn fail(&mut self, reason: CloseReason) -> StreamEvent {
        self.violation = Some(reason);
        StreamEvent::Closed(reason)
    }

    // Output to the carrier.

    /// Sends all due data and messages on the carrier.
    pub(crate) fn transmit(&mut self, now: Time, carrier: &mut impl Carrier) {
        if self.is_over_and_close_sent() {
            return;
        }
        if self.is_open() || self.is_discarding() {
            if let Some(limit) = self.incoming.poll_credit() {
                carrier.control(Control::Credit(limit));
            }
            let with_data = !self.outgoing.next().is_empty();
            if let Some(acknowledge) = self.incoming.poll_acknowledge(now, with_data) {
                carrier.control(Control::Acknowledge(acknowledge));
            }
        }
        loop {
            let next = self.outgoing.next();
            let offered = next.len();
            if offered == 0 {
                break;
            }
            let taken = carrier.data(next);
            self.outgoing.advance_carried(taken);
            if taken < offered {
                break;
            }
        }
        if self.closed_here.is_none()
            && let Some(offset) = self.outgoing.poll_finish()
        {
            carrier.control(Control::Finish(offset));
        }
        if let Some(reason) = self.closed_here
            && !self.close_sent
            && self.outgoing.next().is_empty()
            && self.outgoing.is_all_carried()
        {
            self.close_sent = true;
            carrier.control(Control::Close(reason));
        }
    }

    /// When [`transmit`](Self::transmit) has an acknowledgement to send even if the application does not write.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        if self.is_open() || self.is_discarding() { self.incoming.poll_timeout() } else { None }
    }

    /// This end's position, for a new carrier.
    pub(crate) fn position(&mut self, now: Time) -> Position {
        let (received, credit, finish_received) = self.incoming.position(now);
        Position { sent: self.outgoing.sent(), received, credit, finish_received }
    }

    /// Continues on a new carrier from the other end's position: bytes that the other end lacks are retransmitted.
    /// Returns whether a full buffer has room again.
    pub(crate) fn resume(&mut self, peer: &Position) -> Result<bool, OutOfRange> {
        // The other end must have sent at least what this end has received.
        if peer.sent < self.incoming.received() {
            return Err(OutOfRange);
        }
        let room = self.outgoing.resume(peer.received, peer.finish_received, peer.credit)?;
        self.close_sent = false;
        Ok(room && self.is_open())
    }

    // State.

    /// Whether the application can still write, and receive bytes.
    pub(crate) fn is_open(&self) -> bool {
        self.closed_here.is_none() && !self.closed_there && self.violation.is_none()
    }

    /// Whether received bytes are accepted and dropped.
    fn is_discarding(&self) -> bool {
        let is_closing = self.closed_here.is_some() && !self.close_sent && !self.closed_there;
        is_closing && self.incoming.is_discarded() && self.violation.is_none()
    }

    /// Whether both ends have closed.
    pub(crate) fn is_over(&self) -> bool {
        self.closed_here.is_some() && self.closed_there
    }

    /// Whether both ends have closed, and our *close* is sent on the present carrier.
    pub(crate) fn is_over_and_close_sent(&self) -> bool {
        self.is_over() && self.close_sent
    }

    /// Whether this end sends no more: it has finished or closed.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_closed_here() || self.outgoing.is_finished()
    }

    pub(crate) fn is_closed_here(&self) -> bool {
        self.closed_here.is_some()
    }

    /// The reason of our *close*, if this end has closed.
    pub(crate) fn closed_here(&self) -> Option<CloseReason> {
        self.closed_here
    }

    /// Whether this end has closed with [`CloseReason::Normal`], and the other end has acknowledged all bytes.
    pub(crate) fn has_closed_complete(&self) -> bool {
        self.closed_here == Some(CloseReason::Normal)
            && self.outgoing.acknowledged() == self.outgoing.written()
    }

    /// How many bytes [`write`](Self::write) would take now.
    pub(crate) fn room(&self) -> usize {
        if self.is_open() { self.outgoing.room() } else { 0 }
    }

    /// Bytes that the other end has acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.outgoing.acknowledged()
    }

    /// Whether an acknowledgement is outstanding.
    pub(crate) fn awaits_answer(&self) -> bool {
        self.outgoing.awaits_answer()
    }

    pub(crate) fn written(&self) -> u64 {
        self.outgoing.written()
    }

    pub(crate) fn received(&self) -> u64 {
        self.incoming.received()
    }

    pub(crate) fn unacknowledged_bytes(&self) -> usize {
        self.outgoing.unacknowledged_bytes()
    }

    /// Bytes of memory that hold unacknowledged bytes; 0 if all are acknowledged.
    pub(crate) fn kept_held(&self) -> usize {
        if self.outgoing.unacknowledged_bytes() == 0 { 0 } else { self.outgoing.held() }
    }

    /// Bytes of memory that hold unacknowledged and unread bytes. After this end has closed, unread bytes do not count.
    pub(crate) fn held(&self) -> usize {
        let unread = if self.is_closed_here() { 0 } else { self.incoming.unconsumed() };
        self.outgoing.held() + usize::try_from(unread).unwrap_or(usize::MAX)
    }
}

/// A probe: requests an acknowledgement at once.
pub(crate) fn probe_message(stream: &Stream) -> Control {
    Control::Acknowledge(Acknowledge {
        received: stream.incoming.received(),
        finish_received: stream.incoming.is_finished(),
        requests_answer: true,
    })
}
