//! Requests out and replies in, over a link that is open.
//!
//! A request is one copy and one system call. A reply is received into the caller's buffer and taken apart there:
//! one system call, and no buffer of our own.

use std::io;
use std::mem::MaybeUninit;

use spillway_batch::{CloseReason, LinkError, OpenerEvent};
use spillway_transport::Time;

use super::{Ended, Link, Stage};
use crate::socket;

/// Batches of one connection go at once, so no batch looks at the time.
const ANY_TIME: Time = Time::ZERO;

/// What arrives on a link between two requests is control: a few dozen bytes.
const TAKE_IN_BYTES: usize = 2048;

/// Received at a time of an encrypted link: about one record.
const RECORDS_BYTES: usize = 16 * 1024;

/// A buffer of replies that was longer is not kept while it is empty.
const HELD_BYTES_KEPT: usize = 4096;

impl Link {
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Stage::Open(id) = self.stage else { return Err(io::ErrorKind::WouldBlock.into()) };
        match self.ended {
            None | Some(Ended::Finished) if !self.finished => {}
            None | Some(Ended::Finished | Ended::Closed(CloseReason::Normal)) => {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Some(ended) => return ended.to_result().and(Err(io::ErrorKind::BrokenPipe.into())),
        }
        if !self.unsent.is_empty() {
            self.push_or_fail()?;
        }
        let taken = if self.unsent.is_empty() { self.end.compose(id, bytes) } else { 0 };
        self.wants_room = taken < bytes.len();
        if taken == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.push_or_fail()?;
        Ok(taken)
    }

    /// Whether `send` fell short before and now has room.
    #[must_use]
    pub(crate) fn poll_room(&mut self) -> bool {
        let Stage::Open(id) = self.stage else { return false };
        if !self.wants_room || !self.unsent.is_empty() || self.end.room(id) == 0 {
            return false;
        }
        self.wants_room = false;
        true
    }

    /// Sends no more.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.finished = true;
        if let Stage::Open(id) = self.stage {
            self.end.finish(id);
        }
        self.push_or_fail()
    }

    /// The socket takes bytes again.
    pub(crate) fn writable(&mut self) {
        // What failed will be told by the next `receive` and `send`.
        let _ = self.push_or_fail();
    }

    /// Gives the socket what it takes.
    pub(super) fn push(&mut self) -> io::Result<()> {
        self.unsent.push(ANY_TIME, &mut self.end, &self.socket, |_| {})
    }

    fn push_or_fail(&mut self) -> io::Result<()> {
        self.push().inspect_err(|error| self.fail(Ended::Socket(error.kind())))
    }

    /// The first reason stays: later ones follow from it.
    fn fail(&mut self, why: Ended) {
        if matches!(self.ended, None | Some(Ended::Finished)) {
            self.ended = Some(why);
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
            if let Some(ended) = self.ended {
                return ended.to_result();
            }
            if self.end.is_encrypted() {
                self.receive_records()?;
                if !self.held.is_empty() {
                    return Ok(self.take_held(buffer));
                }
                continue;
            }
            match socket::receive(&self.socket, buffer) {
                Ok(0) => self.fail(Ended::LinkLost),
                Ok(received) => {
                    let filled = self.unpack(buffer, received).unwrap_or_else(|(filled, error)| {
                        self.fail(Ended::Broken(error));
                        filled
                    });
                    self.consumed(filled);
                    // Credit, and the answer to *close*. A socket that fails here tells the next call.
                    let _ = self.push_or_fail();
                    if filled > 0 {
                        return Ok(filled);
                    }
                }
                Err(error) if socket::is_later(&error) => return Err(error),
                Err(error) => self.fail(Ended::Socket(error.kind())),
            }
        }
    }

    /// Records are opened elsewhere than where they are received, and what was in them is held. An error means: later.
    fn receive_records(&mut self) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); RECORDS_BYTES];
        match socket::receive_into(&self.socket, &mut space) {
            Ok([]) => self.fail(Ended::LinkLost),
            Ok(received) => {
                if let Err(error) = self.digest(ANY_TIME, received) {
                    self.fail(Ended::Broken(error));
                }
                while self.end.poll_room().is_some() {}
                let _ = self.push_or_fail();
            }
            Err(error) if socket::is_later(&error) => return Err(error),
            Err(error) => self.fail(Ended::Socket(error.kind())),
        }
        Ok(())
    }

    /// Whether `receive` has something that the socket will not report.
    pub(crate) fn has_more(&self) -> bool {
        self.held_start < self.held.len() || self.ended.is_some()
    }

    fn take_held(&mut self, buffer: &mut [u8]) -> usize {
        let held = &self.held[self.held_start..];
        let taken = held.len().min(buffer.len());
        buffer[..taken].copy_from_slice(&held[..taken]);
        self.held_start += taken;
        if self.held_start == self.held.len() {
            self.held_start = 0;
            self.held.clear();
            self.held.shrink_to(HELD_BYTES_KEPT);
        }
        self.consumed(taken);
        let _ = self.push_or_fail();
        taken
    }

    fn consumed(&mut self, bytes: usize) {
        if let Stage::Open(id) = self.stage
            && bytes > 0
        {
            let outcome = self.end.consumed(id, bytes);
            debug_assert_eq!(outcome, Ok(()), "what is handed out was received");
        }
    }

    /// Takes the batch in `buffer[..received]` apart and moves the data to the front of `buffer`. Returns its
    /// length; with an error, the length of what came before it.
    fn unpack(&mut self, buffer: &mut [u8], received: usize) -> Result<usize, (usize, LinkError)> {
        let (mut next, mut filled) = (0, 0);
        while next < received {
            let mut input = &buffer[next..received];
            let event = self.end.decompose(ANY_TIME, &mut input).map_err(|error| (filled, error))?;
            next = received - input.len();
            match event {
                Some(OpenerEvent::Data { bytes, .. }) => {
                    // Lent from the front of what was not yet taken: it ends where the rest begins.
                    let length = bytes.len();
                    buffer.copy_within(next - length..next, filled);
                    filled += length;
                }
                Some(other) => self.note(&other),
                None => break,
            }
        }
        while self.end.poll_room().is_some() {}
        Ok(filled)
    }

    /// Whether replies have arrived that nobody has received. Takes in all control that has arrived.
    pub(crate) fn has_unread(&mut self) -> bool {
        while self.held.is_empty() && self.take_in() {}
        !self.held.is_empty()
    }

    /// Takes in all that has arrived, for an application that does not receive before it has sent: what allows it
    /// to send comes on the same stream as replies, behind them. Holds at most the window.
    pub(crate) fn absorb(&mut self) {
        while self.take_in() {}
    }

    /// Takes in some of what has arrived; whether there may be more.
    fn take_in(&mut self) -> bool {
        if self.ended.is_some() {
            return false;
        }
        let mut buffer = [0; TAKE_IN_BYTES];
        match socket::receive(&self.socket, &mut buffer) {
            Ok(0) => self.fail(Ended::LinkLost),
            Ok(received) => {
                if let Err(error) = self.digest(ANY_TIME, &buffer[..received]) {
                    self.fail(Ended::Broken(error));
                }
                while self.end.poll_room().is_some() {}
                let _ = self.push_or_fail();
            }
            Err(error) if socket::is_later(&error) => return false,
            Err(error) => self.fail(Ended::Socket(error.kind())),
        }
        true
    }

    /// Why a link that is prepared and not yet in use cannot be used any more.
    #[must_use]
    pub(crate) fn poll_ended(&self) -> Option<Ended> {
        self.ended
    }
}

impl Drop for Link {
    /// Tells the other side, as far as the socket takes it at once.
    fn drop(&mut self) {
        if let Stage::Asked(id) | Stage::Open(id) = self.stage {
            self.end.close(id, CloseReason::Normal);
            let _ = self.push();
        }
    }
}
