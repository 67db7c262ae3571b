//! Sending and receiving on an open link.
//!
//! A request takes one copy and one system call. A reply is received into the caller's buffer and unpacked there, with
//! one system call and no other buffer.

use std::io;

use spillway_batch::{CloseReason, LinkError, OpenerEvent};
use spillway_transport::Time;

use super::{Ended, Link, Stage};
use crate::network::{Stream, would_block};
use crate::scratch;

/// The time does not matter here, because batches of a single connection leave at once.
const ANY_TIME: Time = Time::ZERO;

/// Buffer for bytes that arrive between two requests: usually control frames of a few dozen bytes.
const CONTROL_BUFFER_BYTES: usize = 2048;

/// Capacity that the empty buffer of held data keeps, bytes.
const IDLE_HELD_BYTES: usize = 4096;

impl<S: Stream> Link<S> {
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Stage::Open(id) = self.stage else { return Err(io::ErrorKind::WouldBlock.into()) };
        match self.incoming_end {
            None | Some(Ended::Finished) if !self.outgoing_finished => {}
            None | Some(Ended::Finished | Ended::Closed(CloseReason::Normal)) => {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Some(ended) => return ended.to_result().and(Err(io::ErrorKind::BrokenPipe.into())),
        }
        if !self.unsent.is_empty() {
            self.push_or_fail()?;
        }
        let accepted = if self.unsent.is_empty() { self.protocol.compose(id, bytes) } else { 0 };
        self.last_send_was_partial = accepted < bytes.len();
        if accepted == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.push_or_fail()?;
        Ok(accepted)
    }

    /// Whether `send` has room again after a partial send.
    #[must_use]
    pub(crate) fn poll_room(&mut self) -> bool {
        let Stage::Open(id) = self.stage else { return false };
        if !self.last_send_was_partial || !self.unsent.is_empty() || self.protocol.room(id) == 0 {
            return false;
        }
        self.last_send_was_partial = false;
        true
    }

    /// Whether [`finish`](Self::finish) was called.
    pub(crate) fn has_finished(&self) -> bool {
        self.outgoing_finished
    }

    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.outgoing_finished = true;
        if let Stage::Open(id) = self.stage {
            self.protocol.finish(id);
        }
        self.push_or_fail()
    }

    pub(crate) fn handle_writable(&mut self) {
        // A failure is returned by the next `receive` or `send`.
        let _ = self.push_or_fail();
    }

    /// Sends as many pending bytes as the socket accepts.
    pub(super) fn push(&mut self) -> io::Result<()> {
        self.unsent.push(ANY_TIME, &mut self.protocol, &self.stream, |_| {})
    }

    fn push_or_fail(&mut self) -> io::Result<()> {
        self.push().inspect_err(|error| self.record_failure(Ended::Socket(error.kind())))
    }

    /// Records a failure, unless one is recorded: later failures follow from the first.
    fn record_failure(&mut self, why: Ended) {
        if matches!(self.incoming_end, None | Some(Ended::Finished)) {
            self.incoming_end = Some(why);
        }
    }

    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.held_start < self.held.len() {
            return Ok(self.take_held(buffer));
        }
        loop {
            if let Some(ended) = self.incoming_end {
                // Credit for requests still arrives. The next call returns a failure that is found here.
                self.absorb();
                return ended.to_result();
            }
            if self.protocol.is_encrypted() {
                self.receive_records()?;
                if !self.held.is_empty() {
                    return Ok(self.take_held(buffer));
                }
                continue;
            }
            match self.stream.receive(buffer) {
                Ok(0) => self.record_failure(Ended::LinkLost),
                Ok(received) => {
                    let filled = self.unpack(buffer, received).unwrap_or_else(|(filled, error)| {
                        self.record_failure(Ended::Broken(error));
                        filled
                    });
                    self.consumed(filled);
                    // Sends credit and the answer to *close*. A failure is returned by the next call.
                    let _ = self.push_or_fail();
                    if filled > 0 {
                        return Ok(filled);
                    }
                }
                Err(error) if would_block(&error) => return Err(error),
                Err(error) => self.record_failure(Ended::Socket(error.kind())),
            }
        }
    }

    /// Receives records, decrypts them in a scratch buffer, and holds the data. The only error is `WouldBlock`.
    fn receive_records(&mut self) -> io::Result<()> {
        scratch::with_record_buffer(|received| {
            match self.stream.receive_into(received) {
                Ok(0) => self.record_failure(Ended::LinkLost),
                Ok(_) => {
                    if let Err(error) = self.handle_input(ANY_TIME, received) {
                        self.record_failure(Ended::Broken(error));
                    }
                    while self.protocol.poll_room().is_some() {}
                    let _ = self.push_or_fail();
                }
                Err(error) if would_block(&error) => return Err(error),
                Err(error) => self.record_failure(Ended::Socket(error.kind())),
            }
            Ok(())
        })
    }

    /// Whether `receive` has bytes or a result that the socket does not report.
    pub(crate) fn has_more(&self) -> bool {
        self.held_start < self.held.len() || self.incoming_end.is_some()
    }

    fn take_held(&mut self, buffer: &mut [u8]) -> usize {
        let held = &self.held[self.held_start..];
        let length = held.len().min(buffer.len());
        buffer[..length].copy_from_slice(&held[..length]);
        self.held_start += length;
        if self.held_start == self.held.len() {
            self.held_start = 0;
            self.held.clear();
            self.held.shrink_to(IDLE_HELD_BYTES);
        }
        self.consumed(length);
        let _ = self.push_or_fail();
        length
    }

    fn consumed(&mut self, bytes: usize) {
        if let Stage::Open(id) = self.stage
            && bytes > 0
        {
            let outcome = self.protocol.consumed(id, bytes);
            debug_assert_eq!(outcome, Ok(()), "the link should accept that received bytes were consumed");
        }
    }

    /// Unpacks the batch in `buffer[..received]` and moves its data to the front of `buffer`. Returns the data's
    /// length, or an error together with the length of the data before it.
    fn unpack(&mut self, buffer: &mut [u8], received: usize) -> Result<usize, (usize, LinkError)> {
        let (mut next, mut filled) = (0, 0);
        while next < received {
            let mut input = &buffer[next..received];
            let event = self.protocol.decompose(ANY_TIME, &mut input).map_err(|error| (filled, error))?;
            next = received - input.len();
            match event {
                Some(OpenerEvent::Data { bytes, .. }) => {
                    // `bytes` borrows from `buffer` and ends at `next`.
                    let length = bytes.len();
                    buffer.copy_within(next - length..next, filled);
                    filled += length;
                }
                Some(other) => self.handle_event(&other),
                None => break,
            }
        }
        while self.protocol.poll_room().is_some() {}
        Ok(filled)
    }

    /// Whether unread data has arrived. Handles all control frames that have arrived.
    pub(crate) fn has_unread(&mut self) -> bool {
        while self.held.is_empty() && self.receive_and_hold() {}
        !self.held.is_empty()
    }

    /// Receives all available bytes and holds the data, at most one window. An application that sends without receiving
    /// needs this, because credit arrives after replies on the same stream.
    pub(crate) fn absorb(&mut self) {
        while self.receive_and_hold() {}
    }

    /// Receives some bytes and holds the data. Returns whether more may be available.
    fn receive_and_hold(&mut self) -> bool {
        if !matches!(self.incoming_end, None | Some(Ended::Finished)) {
            return false;
        }
        let mut buffer = [0; CONTROL_BUFFER_BYTES];
        match self.stream.receive(&mut buffer) {
            Ok(0) => self.record_failure(Ended::LinkLost),
            Ok(received) => {
                if let Err(error) = self.handle_input(ANY_TIME, &buffer[..received]) {
                    self.record_failure(Ended::Broken(error));
                }
                while self.protocol.poll_room().is_some() {}
                let _ = self.push_or_fail();
            }
            Err(error) if would_block(&error) => return false,
            Err(error) => self.record_failure(Ended::Socket(error.kind())),
        }
        true
    }

    /// The way in which the incoming direction has ended; `None` while it is open.
    #[must_use]
    pub(crate) fn poll_ended(&self) -> Option<Ended> {
        self.incoming_end
    }
}

impl<S: Stream> Drop for Link<S> {
    /// Sends *close* if the socket accepts it at once.
    fn drop(&mut self) {
        if let Stage::Requested(id) | Stage::Open(id) = self.stage {
            self.protocol.close(id, CloseReason::Normal);
            let _ = self.push();
        }
    }
}
