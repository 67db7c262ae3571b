//! One connection: its socket, how far its life has come, and its two directions.

mod receiving;
mod sending;

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::net::sockopt;
use spillway_transport::{Chunk, LostReason};

pub use self::receiving::Read;
use self::receiving::Receiving;
use self::sending::Sending;
use crate::outgoing::{Flush, Pool};
use crate::reason::reason;

/// One connection.
#[derive(Debug)]
pub struct Connection {
    fd: OwnedFd,
    life: Life,
    receiving: Receiving,
    sending: Sending,
    /// Waits in the list of connections with something to tell.
    in_notes: bool,
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// A `connect` of ours is under way.
    Connecting,
    /// Bytes pass.
    Open,
    /// Sending failed for this reason. What the peer sent before is still read; then the loss is told.
    Broken(LostReason),
    /// Nothing passes any more. The loss is to be told, for this reason.
    Dead(LostReason),
}

/// What follows from a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// It is dead, or the kernel has yet to tell that it takes more.
    Nothing,
    /// The kernel took what it could.
    Done {
        /// The application is to hear that there is room.
        has_room: bool,
        /// Somebody waits for acknowledgements.
        is_watched: bool,
        /// Nothing is left to happen.
        is_over: bool,
    },
    /// Sending failed. What the peer sent before is to be read.
    Broken,
    /// Sending failed, and there is nothing to be read.
    Lost(LostReason),
}

/// What is to be told of a connection that waited in the list of those with something to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// Nothing any more.
    Nothing,
    /// There is room.
    Room,
    /// It is lost.
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

    /// Its socket.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Forgets what waits to be sent. The socket is the caller's.
    pub fn into_socket(mut self, pool: &mut Pool) -> OwnedFd {
        self.sending.clear(pool);
        self.fd
    }

    /// Whether it is still being opened.
    pub fn is_connecting(&self) -> bool {
        self.life == Life::Connecting
    }

    /// Whether its loss is all that is left to tell.
    pub fn is_dead(&self) -> bool {
        matches!(self.life, Life::Dead(_))
    }

    /// Its `connect` has succeeded. Whether something waits to be sent, be it the end.
    pub fn established(&mut self) -> bool {
        debug_assert!(self.is_connecting(), "a connection is established once");
        self.life = Life::Open;
        self.sending.has_something()
    }

    /// It is dead from now on. Of several deaths the first counts.
    pub fn die(&mut self, reason: LostReason, pool: &mut Pool) {
        self.sending.clear(pool);
        if !self.is_dead() {
            self.life = Life::Dead(reason);
        }
    }

    /// Sending has failed. The first reason counts, and is returned.
    fn break_off(&mut self, why: LostReason) -> LostReason {
        match self.life {
            Life::Broken(first) | Life::Dead(first) => first,
            Life::Connecting | Life::Open => {
                self.life = Life::Broken(why);
                why
            }
        }
    }

    fn broken(&self) -> Option<LostReason> {
        match self.life {
            Life::Broken(reason) => Some(reason),
            _ => None,
        }
    }

    /// Takes in the kernel's events of an established connection. The reason of its loss, if nothing can be read any
    /// more.
    pub fn note_events(&mut self, flags: EventFlags) -> Option<LostReason> {
        self.receiving.note_events(flags);
        if flags.contains(EventFlags::ERR)
            && let Ok(Err(error)) = sockopt::socket_error(&self.fd)
        {
            let reason = self.break_off(reason(error));
            return self.receiving.is_finished().then_some(reason);
        }
        None
    }

    /// There may be something to read, though no event has told so.
    pub fn note_readable(&mut self) {
        self.receiving.note_readable();
    }

    /// The kernel takes more. Whether it took no more before.
    pub fn unblock(&mut self) -> bool {
        self.sending.unblock()
    }

    /// So many bytes more may be delivered.
    pub fn grant(&mut self, bytes: u32) {
        self.receiving.grant(bytes);
    }

    /// Whether reading could yield something that may be told.
    pub fn wants_read(&self) -> bool {
        match self.life {
            Life::Connecting | Life::Dead(_) => false,
            Life::Open => self.receiving.wants_read(),
            Life::Broken(_) => self.receiving.has_unread(),
        }
    }

    /// Whether it is to enter the list of connections to read without an event, where it is from now on.
    pub fn enter_ready(&mut self) -> bool {
        self.wants_read() && self.receiving.enter_ready()
    }

    /// It has left that list.
    pub fn leave_ready(&mut self) {
        self.receiving.leave_ready();
    }

    /// Reads once, at most what is granted.
    pub fn read(&mut self, buffer: &mut [u8]) -> Read {
        let broken = self.broken();
        self.receiving.read(&self.fd, buffer, broken)
    }

    fn can_send(&self) -> bool {
        matches!(self.life, Life::Connecting | Life::Open) && self.sending.is_open()
    }

    /// How many bytes it takes now, if `max` may wait.
    pub fn room(&self, max: usize) -> usize {
        if self.can_send() { self.sending.room(max) } else { 0 }
    }

    /// Takes as many bytes as there is room for, if `max` may wait.
    pub fn send(&mut self, bytes: &[u8], max: usize, pool: &mut Pool) -> usize {
        if self.can_send() { self.sending.send(bytes, max, pool) } else { 0 }
    }

    /// Takes a chunk, or hands it back where there is no room, if `max` may wait.
    pub fn send_chunk(&mut self, chunk: Chunk, max: usize, pool: &mut Pool) -> Result<(), Chunk> {
        if self.can_send() { self.sending.send_chunk(chunk, max, pool) } else { Err(chunk) }
    }

    /// The application is to hear when there is room again.
    pub fn want_room(&mut self) {
        if self.can_send() {
            self.sending.want_room();
        }
    }

    /// The application sends no more. Whether that is news.
    pub fn finish(&mut self) -> bool {
        let is_news = self.can_send();
        if is_news {
            self.sending.finish();
        }
        is_news
    }

    /// Bytes that wait for the kernel to take them.
    pub fn queued(&self) -> usize {
        self.sending.queued()
    }

    /// Bytes of memory that what waits takes.
    pub fn held(&self) -> usize {
        self.sending.held()
    }

    /// Whether it is to enter the list of connections to flush at the end of the turn, where it is from now on.
    pub fn enter_dirty(&mut self) -> bool {
        !self.is_connecting() && self.sending.enter_dirty()
    }

    /// Writes what waits, as it leaves that list. Room is told below `room_below` bytes.
    pub fn flush(&mut self, pool: &mut Pool, room_below: usize) -> Flushed {
        self.sending.leave_dirty();
        if self.is_dead() || self.sending.is_blocked() {
            return Flushed::Nothing;
        }
        let (end, has_room) = self.sending.flush(self.fd.as_fd(), pool, room_below);
        if let Flush::Failed(error) = end {
            let why = reason(error);
            self.sending.clear(pool);
            let why = self.break_off(why);
            self.receiving.note_readable();
            return if self.receiving.is_finished() { Flushed::Lost(why) } else { Flushed::Broken };
        }
        Flushed::Done { has_room, is_watched: self.sending.is_watched(), is_over: self.is_over() }
    }

    /// Whether both directions have ended, the kernel has taken all of ours, and the peer has acknowledged it where that
    /// is watched.
    pub fn is_over(&self) -> bool {
        self.receiving.is_finished() && self.sending.is_over()
    }

    /// Whether it is to enter the list of connections with something to tell, where it is from now on.
    pub fn enter_notes(&mut self) -> bool {
        !std::mem::replace(&mut self.in_notes, true)
    }

    /// What is to be told, as it leaves that list.
    pub fn take_note(&mut self) -> Note {
        self.in_notes = false;
        let has_room = self.sending.take_room();
        match self.life {
            Life::Dead(reason) => Note::Lost(reason),
            _ if has_room => Note::Room,
            _ => Note::Nothing,
        }
    }

    /// Whether acknowledgements are told from now on.
    pub fn watch(&mut self, on: bool) {
        self.sending.watch(on);
    }

    /// Whether it is to enter the list of connections whose acknowledgements are asked for, where it is from now on.
    pub fn enter_watch(&mut self) -> bool {
        self.sending.enter_watch()
    }

    /// Whether it is in that list.
    pub fn is_in_watch(&self) -> bool {
        self.sending.is_in_watch()
    }

    /// Asks the kernel what the peer has acknowledged, as it leaves that list. Some where there is something to tell.
    pub fn ask_acknowledged(&mut self) -> Option<u64> {
        let is_dead = self.is_dead();
        self.sending.ask_acknowledged(&self.fd, is_dead)
    }
}
