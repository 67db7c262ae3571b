//! Records of an encrypted link: *opened* (decrypted) before they are decomposed into frames, and *sealed*
//! (encrypted) as complete batches.

use alloc::boxed::Box;
use alloc::vec::Vec;

use core::time::Duration;

use spillway_auth::Channel;
use spillway_transport::{Chunk, Time};
use spillway_wire::record::{RECORD_BYTES_MAX, RECORD_HEADER_BYTES, RECORD_TAG_BYTES, parse_record_length};

use crate::error::LinkError;

/// Whether one end of a link encrypts. Links with the well-known key for loopback
/// ([`Key::loopback_only`](spillway_auth::Key::loopback_only)) are never encrypted, because that key is not
/// secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Encryption {
    /// Encrypted if both ends support it.
    #[default]
    Preferred,
    /// Refuses a link that would not be encrypted: the peer is too old, or the key is the well-known one.
    Required,
    /// Never encrypted: this end offers only link versions without encryption. For tests, and to measure the cost of
    /// encryption.
    Off,
}

/// The buffer for opened records. One buffer of a thread serves all its links; it grows to the largest number of bytes
/// received at once, plus one record.
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

    /// Contents of the last opened records.
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

/// Maximum time for a record to arrive. A sender passes a record of at most 16 KiB to its TCP as a whole, so a record
/// that takes longer was delayed on the path or withheld by the peer. Without a limit the receiver would hold memory
/// for the incomplete record for ever.
const RECORD_TIME_MAX: Duration = Duration::from_secs(10);

/// An incomplete record. The link ends only if two checks, half of [`RECORD_TIME_MAX`] apart, find the record
/// incomplete. With one check, a link would end after a pause of the whole process: the check is then
/// overdue, and comes before the record's rest is read from the socket.
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
    /// Bytes of that part that have arrived, while the part is incomplete.
    partial: Vec<u8>,
    incomplete: Option<Incomplete>,
    /// Opened bytes that were returned and are not decomposed yet.
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
        Box::new(Records { channel, next: Part::Length, partial: Vec::new(), incomplete: None, unread: 0 })
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
            // Still the same record: its time limit remains.
            Some(incomplete) if scratch.filled == 0 => Some(incomplete),
            _ => Some(Incomplete::since(now)),
        };
        self.unread += scratch.filled;
        (scratch.opened(), outcome)
    }

    fn open_all(&mut self, mut wire: &[u8], scratch: &mut Scratch) -> Result<(), LinkError> {
        loop {
            let part_bytes = match self.next {
                Part::Length => RECORD_HEADER_BYTES,
                Part::Bytes(plain) => plain + RECORD_TAG_BYTES,
            };
            let (more, rest) = wire.split_at((part_bytes - self.partial.len()).min(wire.len()));
            wire = rest;
            if self.partial.is_empty() && more.len() == part_bytes {
                self.open_part(more, scratch)?;
            } else {
                self.hold(more, part_bytes, scratch);
                if self.partial.len() < part_bytes {
                    return Ok(());
                }
                let partial = core::mem::take(&mut self.partial);
                self.open_part(&partial, scratch)?;
                scratch.spare = partial;
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
    fn hold(&mut self, bytes: &[u8], part_bytes: usize, scratch: &mut Scratch) {
        if bytes.is_empty() {
            return;
        }
        if self.partial.capacity() == 0 {
            self.partial = core::mem::take(&mut scratch.spare);
            self.partial.clear();
        }
        if self.partial.capacity() < part_bytes {
            self.partial.reserve_exact(part_bytes - self.partial.len());
        }
        self.partial.extend_from_slice(bytes);
        debug_assert!(self.partial.len() <= RECORD_BYTES_MAX, "at most one record should be held");
    }

    fn is_incomplete(&self) -> bool {
        !self.partial.is_empty() || matches!(self.next, Part::Bytes(_))
    }

    /// Bytes of memory that hold an incomplete record.
    pub(crate) fn held_bytes(&self) -> usize {
        self.partial.capacity()
    }

    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.incomplete.map(|incomplete| incomplete.check_at)
    }

    pub(crate) fn incomplete_since(&self) -> Option<Time> {
        self.incomplete.map(|incomplete| incomplete.since)
    }

    /// Fails when the rest of a record did not arrive in time. `is_reading`: the caller reads the link;
    /// otherwise the record's rest may be in the socket, so this check does not count, and the next one is
    /// the first of two again.
    pub(crate) fn handle_timeout(&mut self, now: Time, is_reading: bool) -> Result<(), LinkError> {
        let Some(incomplete) = self.incomplete.filter(|incomplete| incomplete.check_at <= now) else {
            return Ok(());
        };
        if is_reading && incomplete.is_second_check {
            return Err(LinkError::RecordTimeout);
        }
        let is_second_check = is_reading;
        self.incomplete = Some(incomplete.next_check(now, is_second_check));
        Ok(())
    }

    /// Fails if the input is longer than the bytes that [`unseal`](Self::unseal) returned and that are not
    /// decomposed yet: then the driver passes sealed bytes. Only the length is checked.
    pub(crate) fn check_opened(&self, input: &[u8]) -> Result<(), LinkError> {
        if input.len() > self.unread { Err(LinkError::Sealed) } else { Ok(()) }
    }

    /// The caller has decomposed this many of the bytes that [`unseal`](Self::unseal) returned.
    pub(crate) fn consumed_opened(&mut self, bytes: usize) {
        self.unread -= bytes.min(self.unread);
    }

    pub(crate) fn seal(&mut self, plain: &[u8], out: &mut Chunk) {
        self.channel.seal(plain, out.buffer());
    }
}
