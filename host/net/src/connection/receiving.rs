//! What comes from the peer.

use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use spillway_transport::LostReason;

use crate::reason::reason;

/// The direction from the peer to us.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    /// Bytes that may still be delivered.
    granted: u64,
    /// Bytes delivered.
    received: u64,
    /// What the kernel has told, which it does once for each change.
    told: Told,
    /// The peer's end was read.
    is_finished: bool,
    /// Waits in the list of connections to read without an event.
    in_ready: bool,
}

/// What edge-triggered events have told and reading has not used up.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// There may be something to read.
    readable: bool,
    /// The kernel has seen the peer's end; it lies after the bytes that are still to be read.
    hung_up: bool,
    /// The kernel reported urgent data, at which a read stops short: only "nothing there" is to be believed.
    urgent: bool,
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// So many bytes, of which the last has this offset.
    Data { length: usize, end: u64 },
    /// The peer's end.
    Finished,
    /// The connection is dead.
    Lost(LostReason),
    /// Nothing that may be told now.
    Nothing,
}

impl Receiving {
    pub(super) fn note_events(&mut self, flags: EventFlags) {
        let ends = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        self.told.readable |= flags.intersects(EventFlags::IN | EventFlags::PRI | ends);
        self.told.hung_up |= flags.intersects(ends);
        self.told.urgent |= flags.contains(EventFlags::PRI);
    }

    pub(super) fn note_readable(&mut self) {
        self.told.readable = true;
    }

    pub(super) fn grant(&mut self, bytes: u32) {
        self.granted = self.granted.saturating_add(u64::from(bytes));
    }

    pub(super) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Whether bytes or an end may be told.
    pub(super) fn wants_read(&self) -> bool {
        self.has_unread() && (self.granted > 0 || self.told.hung_up)
    }

    /// Whether there may be bytes or an end that were not read.
    pub(super) fn has_unread(&self) -> bool {
        self.told.readable && !self.is_finished
    }

    pub(super) fn enter_ready(&mut self) -> bool {
        !std::mem::replace(&mut self.in_ready, true)
    }

    pub(super) fn leave_ready(&mut self) {
        self.in_ready = false;
    }

    /// Reads once, at most what is granted. `broken`: sending has failed, which is told after what the peer sent.
    pub(super) fn read(&mut self, fd: &OwnedFd, buffer: &mut [u8], broken: Option<LostReason>) -> Read {
        let asked = usize::try_from(self.granted).unwrap_or(usize::MAX).min(buffer.len());
        if asked == 0 {
            return self.look_for_the_end(fd, broken);
        }
        match recv_once(fd, &mut buffer[..asked], RecvFlags::DONTWAIT) {
            Ok(0) => self.ended(broken),
            Ok(length) => {
                self.granted -= length as u64;
                self.received += length as u64;
                // A short read has emptied the queue, so the next byte is a new event, and another read would be
                // in vain; unless the end is already there, or an urgent mark stopped the read.
                self.told.readable =
                    length == asked || self.told.hung_up || self.told.urgent || broken.is_some();
                Read::Data { length, end: self.received }
            }
            Err(error) => self.not_read(error, broken),
        }
    }

    /// Without a grant nothing may be delivered, but an end without bytes before it is told.
    fn look_for_the_end(&mut self, fd: &OwnedFd, broken: Option<LostReason>) -> Read {
        if let Some(reason) = broken {
            return Read::Lost(reason);
        }
        match recv_once(fd, &mut [0], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Ok(0) => self.ended(None),
            // The next grant makes us read.
            Ok(_) => Read::Nothing,
            Err(error) => self.not_read(error, None),
        }
    }

    fn ended(&mut self, broken: Option<LostReason>) -> Read {
        self.told.readable = false;
        if let Some(reason) = broken {
            return Read::Lost(reason);
        }
        self.is_finished = true;
        Read::Finished
    }

    fn not_read(&mut self, error: Errno, broken: Option<LostReason>) -> Read {
        self.told.readable = false;
        if error == Errno::AGAIN {
            self.told.urgent = false;
            return broken.map_or(Read::Nothing, Read::Lost);
        }
        Read::Lost(broken.unwrap_or(reason(error)))
    }
}

fn recv_once(fd: &OwnedFd, buffer: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
    loop {
        match recv(fd, &mut *buffer, flags) {
            Err(Errno::INTR) => {}
            // The second number is the length on the wire, which is the same for streams.
            result => return result.map(|(count, _)| count),
        }
    }
}
