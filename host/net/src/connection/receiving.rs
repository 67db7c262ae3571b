//! The receiving direction of a connection.

use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use spillway_transport::LostReason;

use crate::reason::reason;

#[derive(Debug, Default)]
pub(super) struct Receiving {
    /// Bytes that may still be delivered.
    granted: u64,
    /// Bytes delivered.
    received: u64,
    /// Edge-triggered epoll reports each change only once, so events are kept until a read has used them up.
    pending: Pending,
    /// The peer's end was read.
    is_finished: bool,
    /// The connection is in the thread's list `ready`.
    in_ready: bool,
}

/// Events that reads have not used up.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    /// The socket may be readable.
    readable: bool,
    /// The peer's end or an error has arrived. A read finds it after the data.
    hung_up: bool,
    /// Urgent data has arrived. Reads stop short at its mark, so only EAGAIN shows that nothing is left to read.
    urgent: bool,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// `length` bytes were read; `end` is the stream offset after them.
    Data { length: usize, end: u64 },
    /// The peer has finished.
    Finished,
    /// The connection is lost, for this reason.
    Lost(LostReason),
    /// Nothing to report at present.
    Nothing,
}

impl Receiving {
    pub(super) fn note_events(&mut self, flags: EventFlags) {
        let ends = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        self.pending.readable |= flags.intersects(EventFlags::IN | EventFlags::PRI | ends);
        self.pending.hung_up |= flags.intersects(ends);
        self.pending.urgent |= flags.contains(EventFlags::PRI);
    }

    pub(super) fn note_readable(&mut self) {
        self.pending.readable = true;
    }

    pub(super) fn grant(&mut self, bytes: u32) {
        self.granted = self.granted.saturating_add(u64::from(bytes));
    }

    pub(super) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Whether a read may find data or an end that may be reported.
    pub(super) fn may_read(&self) -> bool {
        self.has_unread() && (self.granted > 0 || self.pending.hung_up)
    }

    /// Whether there may be unread data or an unread end.
    pub(super) fn has_unread(&self) -> bool {
        self.pending.readable && !self.is_finished
    }

    pub(super) fn enter_ready(&mut self) -> bool {
        !std::mem::replace(&mut self.in_ready, true)
    }

    pub(super) fn leave_ready(&mut self) {
        self.in_ready = false;
    }

    /// Reads once, at most the granted bytes. `broken`: why sending has failed; reported after the granted bytes.
    pub(super) fn read(&mut self, fd: &OwnedFd, buffer: &mut [u8], broken: Option<LostReason>) -> Read {
        let length_max = usize::try_from(self.granted).unwrap_or(usize::MAX).min(buffer.len());
        if length_max == 0 {
            return self.peek_end(fd, broken);
        }
        match recv_once(fd, &mut buffer[..length_max], RecvFlags::DONTWAIT) {
            Ok(0) => self.handle_end(broken),
            Ok(length) => {
                self.granted -= length as u64;
                self.received += length as u64;
                // A short read has emptied the receive queue: more data will cause a new event. Exceptions: the end
                // has already arrived, or an urgent mark stopped the read.
                self.pending.readable =
                    length == length_max || self.pending.hung_up || self.pending.urgent || broken.is_some();
                Read::Data { length, end: self.received }
            }
            Err(error) => self.handle_error(error, broken),
        }
    }

    /// Handles a read without a grant: reports a failure of sending, or an end that no data precedes. Data may still
    /// precede the failure, but the application may never grant again: it often grants only after it has sent.
    fn peek_end(&mut self, fd: &OwnedFd, broken: Option<LostReason>) -> Read {
        if let Some(reason) = broken {
            return Read::Lost(reason);
        }
        match recv_once(fd, &mut [0], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Ok(0) => self.handle_end(None),
            // Data is waiting: the next grant causes a read.
            Ok(_) => Read::Nothing,
            Err(error) => self.handle_error(error, None),
        }
    }

    fn handle_end(&mut self, broken: Option<LostReason>) -> Read {
        self.pending.readable = false;
        if let Some(reason) = broken {
            return Read::Lost(reason);
        }
        self.is_finished = true;
        Read::Finished
    }

    fn handle_error(&mut self, error: Errno, broken: Option<LostReason>) -> Read {
        self.pending.readable = false;
        if error == Errno::AGAIN {
            self.pending.urgent = false;
            return broken.map_or(Read::Nothing, Read::Lost);
        }
        Read::Lost(broken.unwrap_or(reason(error)))
    }
}

fn recv_once(fd: &OwnedFd, buffer: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
    loop {
        match recv(fd, &mut *buffer, flags) {
            Err(Errno::INTR) => {}
            // For streams the second number equals the first.
            result => return result.map(|(count, _)| count),
        }
    }
}
