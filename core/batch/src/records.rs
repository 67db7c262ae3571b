//! An encrypted link's records: received ones are opened before they are taken apart, and a complete batch is sealed.

use alloc::boxed::Box;
use alloc::vec::Vec;

use core::time::Duration;

use spillway_auth::Channel;
use spillway_transport::{Chunk, Time};
use spillway_wire::record::{RECORD_BYTES_MAX, RECORD_HEADER_BYTES, RECORD_TAG_BYTES, parse_record_length};

use crate::error::LinkError;

/// Whether one end of a link encrypts. Links with the published loopback-only key are never encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Encryption {
    /// Encrypted if both ends can.
    #[default]
    Preferred,
    /// Refuses a link that would not be encrypted: of an older peer, or without a secret key.
    Required,
    /// Never encrypted: this end offers link versions without encryption only. For measuring what encryption costs, and
    /// for tests.
    Off,
}

/// The buffer for opened records. One for each thread serves all its links; it grows to the most bytes received at a
/// time, plus one record.
#[derive(Debug, Default)]
pub struct Scratch {
    opened: Vec<u8>,
    filled: usize,
    /// Buffer for an incomplete record, reused by the next link that needs one.
    spare: Vec<u8>,
}

impl Scratch {
    /// An empty buffer.
    pub fn new() -> Scratch {
        Scratch::default()
    }

    pub(crate) fn clear(&mut self) {
        self.filled = 0;
    }

    /// Contents of the records opened last.
    pub fn opened(&self) -> &[u8] {
        &self.opened[..self.filled]
    }

    fn open(&mut self, channel: &mut Channel, sealed: &[u8]) -> Result<(), LinkError> {
        let end = self.filled + sealed.len() - RECORD_TAG_BYTES;
        if self.opened.len() < end {
            self.opened.resize(end, 0);
        }
        channel.open(sealed, &mut self.opened[self.filled..end])?;
        self.filled = end;
        Ok(())
    }
}

/// Longest time for a record to arrive. A sender gives a record of at most 16 KiB to its TCP as a whole, so a slower
/// one was held back. Without a limit the receiver would hold its memory for ever.
const RECORD_TIME_MAX: Duration = Duration::from_secs(10);

/// An incomplete record. It ends the link only if two checks, half of [`RECORD_TIME_MAX`] apart, find it incomplete:
/// after a pause of the whole process the rest is in its socket, and is read between the two.
#[derive(Clone, Copy, Debug)]
struct Incomplete {
    since: Time,
    check_at: Time,
    is_second_check: bool,
}

impl Incomplete {
    fn since(now: Time) -> Incomplete {
        Incomplete { since: now, check_at: now + RECORD_TIME_MAX / 2, is_second_check: false }
    }

    fn next_check(self, now: Time, is_second_check: bool) -> Incomplete {
        Incomplete { check_at: now + RECORD_TIME_MAX / 2, is_second_check, ..self }
    }
}

#[derive(Debug)]
pub(crate) struct Records {
    channel: Channel,
    /// The part of a record that is expected next.
    next: Part,
    /// Bytes of that part that have arrived, while it is incomplete.
    cut: Vec<u8>,
    incomplete: Option<Incomplete>,
    /// Opened bytes that were handed out and are not decomposed yet.
    unread: usize,
}

#[derive(Clone, Copy, Debug)]
enum Part {
    Length,
    /// This number of bytes of frames, and the tag.
    Bytes(usize),
}

impl Records {
    pub(crate) fn new(channel: Channel) -> Box<Records> {
        Box::new(Records { channel, next: Part::Length, cut: Vec::new(), incomplete: None, unread: 0 })
    }

    /// Opens all complete records. Records opened before an error are returned too.
    pub(crate) fn unseal<'a>(
        &mut self,
        now: Time,
        wire: &[u8],
        scratch: &'a mut Scratch,
    ) -> (&'a [u8], Result<(), LinkError>) {
        scratch.filled = 0;
        let outcome = self.open_all(wire, scratch);
        self.incomplete = match self.incomplete {
            _ if !self.is_incomplete() => None,
            // Still the same record: its time runs on.
            Some(incomplete) if scratch.filled == 0 => Some(incomplete),
            _ => Some(Incomplete::since(now)),
        };
        self.unread += scratch.filled;
        (scratch.opened(), outcome)
    }

    fn open_all(&mut self, mut wire: &[u8], scratch: &mut Scratch) -> Result<(), LinkError> {
        loop {
            let wanted = match self.next {
                Part::Length => RECORD_HEADER_BYTES,
                Part::Bytes(plain) => plain + RECORD_TAG_BYTES,
            };
            let (more, rest) = wire.split_at((wanted - self.cut.len()).min(wire.len()));
            wire = rest;
            if self.cut.is_empty() && more.len() == wanted {
                self.open_part(more, scratch)?;
            } else {
                self.hold(more, wanted, scratch);
                if self.cut.len() < wanted {
                    return Ok(());
                }
                let cut = core::mem::take(&mut self.cut);
                self.open_part(&cut, scratch)?;
                scratch.spare = cut;
            }
        }
    }

    fn open_part(&mut self, sealed: &[u8], scratch: &mut Scratch) -> Result<(), LinkError> {
        self.next = match (self.next, sealed.first_chunk()) {
            (Part::Length, Some(header)) => {
                Part::Bytes(parse_record_length(self.channel.open_length(header)?)?)
            }
            _ => {
                scratch.open(&mut self.channel, sealed)?;
                Part::Length
            }
        };
        Ok(())
    }

    /// Keeps bytes of an incomplete part: at most one record.
    fn hold(&mut self, bytes: &[u8], wanted: usize, scratch: &mut Scratch) {
        if bytes.is_empty() {
            return;
        }
        if self.cut.capacity() == 0 {
            self.cut = core::mem::take(&mut scratch.spare);
            self.cut.clear();
        }
        if self.cut.capacity() < wanted {
            self.cut.reserve_exact(wanted - self.cut.len());
        }
        self.cut.extend_from_slice(bytes);
        debug_assert!(self.cut.len() <= RECORD_BYTES_MAX, "more than one record is held");
    }

    fn is_incomplete(&self) -> bool {
        !self.cut.is_empty() || matches!(self.next, Part::Bytes(_))
    }

    pub(crate) fn held(&self) -> usize {
        self.cut.capacity()
    }

    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.incomplete.map(|incomplete| incomplete.check_at)
    }

    pub(crate) fn incomplete_since(&self) -> Option<Time> {
        self.incomplete.map(|incomplete| incomplete.since)
    }

    /// Fails when the rest of a record did not arrive in time. `may_read`: the caller reads the link.
    pub(crate) fn handle_timeout(&mut self, now: Time, may_read: bool) -> Result<(), LinkError> {
        let Some(incomplete) = self.incomplete.filter(|incomplete| incomplete.check_at <= now) else {
            return Ok(());
        };
        if may_read && incomplete.is_second_check {
            return Err(LinkError::RecordTimeout);
        }
        self.incomplete = Some(incomplete.next_check(now, may_read));
        Ok(())
    }

    /// Fails unless [`unseal`](Self::unseal) returned these bytes: a driver must not decompose sealed bytes.
    pub(crate) fn are_opened(&self, input: &[u8]) -> Result<(), LinkError> {
        if input.len() > self.unread { Err(LinkError::Sealed) } else { Ok(()) }
    }

    pub(crate) fn took(&mut self, bytes: usize) {
        self.unread -= bytes.min(self.unread);
    }

    pub(crate) fn seal(&mut self, plain: &[u8], out: &mut Chunk) {
        self.channel.seal(plain, out.buffer());
    }
}
