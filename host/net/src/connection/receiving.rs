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
    /// A read has returned the end of the peer's stream.
    is_finished: bool,
    /// The connection is in the thread's list `ready`.
    in_ready: bool,
}

/// Events that reads have not used up.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    /// The socket may be readable.
    readable: bool,
    /// The peer's FIN or an error has arrived. Reads return it after the data.
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

    pub(super) fn granted(&self) -> u64 {
        self.granted
    }

    /// Continues a connection with this number of granted bytes. `is_finished`: the end of the peer's stream was reported.
    pub(super) fn resume(&mut self, granted: u64, is_finished: bool) {
        (self.granted, self.is_finished) = (granted, is_finished);
        // Whether the peer has finished already is not known: the next read tells.
        self.pending.hung_up = !is_finished;
    }

    pub(super) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Whether to read: there may be data, and bytes are granted; or there may be the end of the stream or an
    /// error, which need no grant.
    pub(super) fn may_read(&self) -> bool {
        self.has_unread() && (self.granted > 0 || self.pending.hung_up)
    }

    /// Whether there may be unread data, or an end of the stream or an error that no read has returned.
    pub(super) fn has_unread(&self) -> bool {
        self.pending.readable && !self.is_finished
    }

    pub(super) fn enter_ready(&mut self) -> bool {
        !std::mem::replace(&mut self.in_ready, true)
    }

    pub(super) fn leave_ready(&mut self) {
        self.in_ready = false;
    }

    /// Reads once, at most the granted bytes. `send_failure`: the reason if sending has failed. Granted data
    /// is returned first, then [`Read::Lost`] with this reason.
    pub(super) fn read(&mut self, fd: &OwnedFd, buffer: &mut [u8], send_failure: Option<LostReason>) -> Read {
        let length_max = usize::try_from(self.granted).unwrap_or(usize::MAX).min(buffer.len());
        if length_max == 0 {
            return self.peek_end(fd, send_failure);
        }
        match recv_once(fd, &mut buffer[..length_max], RecvFlags::DONTWAIT) {
            Ok(0) => self.handle_end(send_failure),
            Ok(length) => {
                self.granted -= length as u64;
                self.received += length as u64;
                // A short read has emptied the receive queue: more data will cause a new event. Exceptions:
                // the end has already arrived, an urgent mark stopped the read, or the next read must report
                // that sending failed.
                self.pending.readable = length == length_max
                    || self.pending.hung_up
                    || self.pending.urgent
                    || send_failure.is_some();
                Read::Data { length, end: self.received }
            }
            Err(error) => self.handle_error(error, send_failure),
        }
    }

    /// Handles a read without a grant: reports that sending has failed, or the end of the stream if no data precedes it.
    /// A failure of sending is reported at once and unread data is discarded, because an application that grants only
    /// after it has sent would never grant again.
    fn peek_end(&mut self, fd: &OwnedFd, send_failure: Option<LostReason>) -> Read {
        if let Some(reason) = send_failure {
            return Read::Lost(reason);
        }
        match recv_once(fd, &mut [0], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Ok(0) => self.handle_end(None),
            // Data is waiting: the next grant causes a read.
            Ok(_) => Read::Nothing,
            Err(error) => self.handle_error(error, None),
        }
    }

    fn handle_end(&mut self, send_failure: Option<LostReason>) -> Read {
        self.pending.readable = false;
        if let Some(reason) = send_failure {
            return Read::Lost(reason);
        }
        self.is_finished = true;
        Read::Finished
    }

    fn handle_error(&mut self, error: Errno, send_failure: Option<LostReason>) -> Read {
        self.pending.readable = false;
        if error == Errno::AGAIN {
            // An end or an error would have been returned; one that arrives later causes a new event.
            (self.pending.urgent, self.pending.hung_up) = (false, false);
            return send_failure.map_or(Read::Nothing, Read::Lost);
        }
        Read::Lost(send_failure.unwrap_or(reason(error)))
    }
}

fn recv_once(fd: &OwnedFd, buffer: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
    loop {
        match recv(fd, &mut *buffer, flags) {
            Err(Errno::INTR) => {}
            // `recv` also returns the message's untruncated length, which equals the bytes read for a stream.
            result => return result.map(|(count, _)| count),
        }
    }
}
