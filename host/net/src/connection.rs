//! One connection: its socket, its state, and its two directions.

mod detached;
mod receiving;
mod sending;

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::net::sockopt;
use spillway_transport::{Chunk, LostReason};

pub use self::detached::Detached;
pub use self::receiving::Read;
use self::receiving::Receiving;
use self::sending::Sending;
use crate::outgoing::{FlushEnd, Pool};
use crate::reason::reason;

#[derive(Debug)]
pub struct Connection {
    fd: OwnedFd,
    life: Life,
    receiving: Receiving,
    sending: Sending,
    /// The connection is in the thread's list `notes`.
    in_notes: bool,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Connecting,
    /// Established.
    Open,
    /// Sending failed, or the peer has reset the connection, for this reason. The loss is reported after the granted
    /// bytes have been read. The report does not wait for a further grant, because the application may grant only after
    /// it has sent.
    Broken(LostReason),
    /// Both directions have ended. The loss is still to be reported, for this reason.
    Dead(LostReason),
}

/// The effect of a flush on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushOutcome {
    /// Nothing was written: the connection is dead, or the socket is not writable.
    Nothing,
    /// The kernel has accepted all bytes that it has room for.
    Done {
        /// Room must be reported to the application.
        has_room: bool,
        /// Acknowledgements are reported to the application.
        is_watched: bool,
        /// The connection has ended in order: see [`Connection::has_ended`].
        has_ended: bool,
    },
    /// Sending failed. The granted bytes must be read.
    Broken,
    /// Sending failed, and all of the peer's data has been read.
    Lost(LostReason),
}

/// What to report to the application about a connection in the list `notes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    Nothing,
    Room,
    Lost(LostReason),
}

impl Connection {
    /// An established connection.
    pub fn opened(fd: OwnedFd) -> Connection {
        Connection {
            fd,
            life: Life::Open,
            receiving: Receiving::default(),
            sending: Sending::default(),
            in_notes: false,
        }
    }

    /// A connection that is being opened.
    pub fn connecting(fd: OwnedFd) -> Connection {
        Connection { life: Life::Connecting, ..Connection::opened(fd) }
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Discards the queue and returns the socket.
    pub fn into_socket(mut self, pool: &mut Pool) -> OwnedFd {
        self.sending.clear(pool);
        self.fd
    }

    /// Whether the connection is established, and has not failed.
    pub fn is_open(&self) -> bool {
        self.life == Life::Open
    }

    /// What remains of the connection without its socket.
    pub fn detached(&self) -> Detached {
        Detached {
            granted: self.receiving.granted(),
            is_finished: self.receiving.is_finished(),
            queue: self.sending.queue_bytes(),
            has_ended: !self.sending.is_open(),
            wants_room: self.sending.wants_room(),
            is_watched: self.sending.is_watched(),
        }
    }

    /// Continues with these grants and ends of both directions.
    pub fn resume(&mut self, granted: u64, is_finished: bool, has_ended: bool, wants_room: bool) {
        self.receiving.resume(granted, is_finished);
        self.sending.resume(has_ended, wants_room);
    }

    pub fn is_connecting(&self) -> bool {
        self.life == Life::Connecting
    }

    /// Whether the connection is lost and only the report is missing.
    pub fn is_dead(&self) -> bool {
        matches!(self.life, Life::Dead(_))
    }

    /// Records that the attempt to connect has succeeded. Returns whether data or the end waits to be sent.
    pub fn mark_established(&mut self) -> bool {
        debug_assert!(self.is_connecting(), "only a connecting connection should become established");
        self.life = Life::Open;
        self.sending.has_output()
    }

    /// Marks the connection as dead, unless it is already: the first reason is reported.
    pub fn mark_dead(&mut self, reason: LostReason, pool: &mut Pool) {
        self.sending.clear(pool);
        if !self.is_dead() {
            self.life = Life::Dead(reason);
        }
    }

    /// Handles a failure of sending. Returns the reason of the first failure, which will be reported.
    fn mark_broken(&mut self, cause: LostReason) -> LostReason {
        match self.life {
            Life::Broken(first) | Life::Dead(first) => first,
            Life::Connecting | Life::Open => {
                self.life = Life::Broken(cause);
                cause
            }
        }
    }

    fn broken(&self) -> Option<LostReason> {
        match self.life {
            Life::Broken(reason) => Some(reason),
            _ => None,
        }
    }

    /// Handles epoll events of an established connection. Returns the reason of its loss if nothing is left to read.
    pub fn note_events(&mut self, flags: EventFlags) -> Option<LostReason> {
        self.receiving.note_events(flags);
        if flags.contains(EventFlags::ERR)
            && let Ok(Err(error)) = sockopt::socket_error(&self.fd)
        {
            let reason = self.mark_broken(reason(error));
            return self.receiving.is_finished().then_some(reason);
        }
        None
    }

    /// Assumes that the socket is readable, although no event has reported it.
    pub fn note_readable(&mut self) {
        self.receiving.note_readable();
    }

    /// Handles a writable socket. Returns whether it was not writable before.
    pub fn unblock(&mut self) -> bool {
        self.sending.unblock()
    }

    pub fn grant(&mut self, bytes: u32) {
        self.receiving.grant(bytes);
    }

    /// Whether a read may find data, an end or a loss that may be reported.
    pub fn may_read(&self) -> bool {
        match self.life {
            Life::Connecting | Life::Dead(_) => false,
            Life::Open => self.receiving.may_read(),
            Life::Broken(_) => self.receiving.has_unread(),
        }
    }

    /// Marks the connection as being in the list `ready`. Returns whether the caller must add the connection.
    pub fn enter_ready(&mut self) -> bool {
        self.may_read() && self.receiving.enter_ready()
    }

    pub fn leave_ready(&mut self) {
        self.receiving.leave_ready();
    }

    /// Reads once, at most the granted bytes.
    pub fn read(&mut self, buffer: &mut [u8]) -> Read {
        let broken = self.broken();
        self.receiving.read(&self.fd, buffer, broken)
    }

    fn can_send(&self) -> bool {
        matches!(self.life, Life::Connecting | Life::Open) && self.sending.is_open()
    }

    /// Number of bytes that [`send`](Self::send) would accept if at most `max` may be queued.
    pub fn room(&self, max: usize) -> usize {
        if self.can_send() { self.sending.room(max) } else { 0 }
    }

    /// Queues as many bytes as there is room for, if at most `max` may be queued. Returns the number of queued bytes.
    pub fn send(&mut self, bytes: &[u8], max: usize, pool: &mut Pool) -> usize {
        if self.can_send() { self.sending.send(bytes, max, pool) } else { 0 }
    }

    /// Queues a chunk, or returns the chunk if more than `max` bytes would be queued or this end cannot send. An empty
    /// queue accepts a chunk of any size.
    pub fn send_chunk(&mut self, chunk: Chunk, max: usize, pool: &mut Pool) -> Result<(), Chunk> {
        if self.can_send() { self.sending.send_chunk(chunk, max, pool) } else { Err(chunk) }
    }

    /// Requests a report when there is room again.
    pub fn want_room(&mut self) {
        if self.can_send() {
            self.sending.want_room();
        }
    }

    /// Ends the sending direction. Returns whether it was open.
    pub fn finish(&mut self) -> bool {
        let was_open = self.can_send();
        if was_open {
            self.sending.finish();
        }
        was_open
    }

    /// Bytes that wait to be written.
    pub fn queued(&self) -> usize {
        self.sending.queued()
    }

    /// Bytes of memory that the queue takes.
    pub fn held(&self) -> usize {
        self.sending.held()
    }

    /// Marks the connection as being in the list `dirty`. Returns whether the caller must add the connection.
    pub fn enter_dirty(&mut self) -> bool {
        !self.is_connecting() && self.sending.enter_dirty()
    }

    /// Writes the queue, and leaves the list `dirty`. Reports room if the application waits for it and at most
    /// `room_below` bytes remain queued.
    pub fn flush(&mut self, pool: &mut Pool, room_below: usize) -> FlushOutcome {
        self.sending.leave_dirty();
        if self.is_dead() || self.sending.is_blocked() {
            return FlushOutcome::Nothing;
        }
        let (end, has_room) = self.sending.flush(self.fd.as_fd(), pool, room_below);
        if let FlushEnd::Failed(error) = end {
            let cause = reason(error);
            self.sending.clear(pool);
            let cause = self.mark_broken(cause);
            self.receiving.note_readable();
            return if self.receiving.is_finished() {
                FlushOutcome::Lost(cause)
            } else {
                FlushOutcome::Broken
            };
        }
        FlushOutcome::Done { has_room, is_watched: self.sending.is_watched(), has_ended: self.has_ended() }
    }

    /// Whether both directions have ended and all data was written and, if acknowledgements are watched, acknowledged.
    pub fn has_ended(&self) -> bool {
        self.receiving.is_finished() && self.sending.has_ended()
    }

    /// Marks the connection as being in the list `notes`. Returns whether the caller must add the connection.
    pub fn enter_notes(&mut self) -> bool {
        !std::mem::replace(&mut self.in_notes, true)
    }

    /// Returns the report for the application; the connection leaves the list `notes`.
    pub fn take_note(&mut self) -> Note {
        self.in_notes = false;
        let has_room = self.sending.take_room();
        match self.life {
            Life::Dead(reason) => Note::Lost(reason),
            _ if has_room => Note::Room,
            _ => Note::Nothing,
        }
    }

    /// Sets whether acknowledgements are reported.
    pub fn watch(&mut self, on: bool) {
        self.sending.watch(on);
    }

    /// Marks the connection as being in the list `watch`. Returns whether the caller must add the connection.
    pub fn enter_watch(&mut self) -> bool {
        self.sending.enter_watch()
    }

    /// Whether the connection is in the list `watch`.
    pub fn is_in_watch(&self) -> bool {
        self.sending.is_in_watch()
    }

    /// Queries what the peer has acknowledged, and leaves the list `watch`. Returns the offset if it has grown.
    pub fn query_acknowledged(&mut self) -> Option<u64> {
        let is_dead = self.is_dead();
        self.sending.query_acknowledged(&self.fd, is_dead)
    }
}
