//! One connection: its socket and what is known about it.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use spillway_transport::LostReason;

use crate::outgoing::Outgoing;

/// State of one connection. Fields are the driver's to change; methods keep what belongs together.
#[derive(Debug)]
pub struct Connection {
    pub fd: OwnedFd,
    /// A `connect` of ours is under way.
    pub connecting: bool,

    /// Bytes that may still be delivered.
    pub granted: u64,
    /// Bytes delivered.
    pub received: u64,
    /// There may be something to read. Edge-triggered events are told once, so this is our memory of them.
    pub readable: bool,
    /// The kernel has seen the peer's end; it lies after the bytes that are still to be read.
    pub hung_up: bool,
    /// The kernel reported urgent data, at which a read stops short: only "nothing there" is to be believed.
    pub urgent: bool,
    /// The peer's end was read.
    pub peer_finished: bool,
    /// Waits in the list of connections to read without an event.
    pub in_ready: bool,

    pub out: Outgoing,
    /// Waits in the list of connections to flush at the end of the turn.
    pub dirty: bool,
    /// The kernel took no more and will tell when it does.
    pub blocked: bool,
    /// The application was told that there is no room.
    pub wants_room: bool,
    /// The application sends no more.
    pub finishing: bool,
    /// The kernel knows that we send no more.
    pub shut: bool,
    /// Bytes the kernel has taken.
    pub sent: u64,

    /// Somebody waits for acknowledgements.
    pub watched: bool,
    /// Waits in the list of connections whose acknowledgements are asked for.
    pub in_watch: bool,
    /// Bytes the peer's TCP has acknowledged, as last told.
    pub acknowledged: u64,

    /// Room is to be told.
    pub note_room: bool,
    /// The loss is to be told; the connection is dead already.
    pub note_lost: Option<LostReason>,
    /// Waits in the list of connections with something to tell.
    pub in_notes: bool,
    /// Sending failed for this reason. What the peer sent before is still read.
    pub broken: Option<LostReason>,
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

impl Connection {
    /// An established connection.
    pub fn opened(fd: OwnedFd) -> Connection {
        Connection {
            fd,
            connecting: false,
            granted: 0,
            received: 0,
            readable: false,
            hung_up: false,
            urgent: false,
            peer_finished: false,
            in_ready: false,
            out: Outgoing::default(),
            dirty: false,
            blocked: false,
            wants_room: false,
            finishing: false,
            shut: false,
            sent: 0,
            watched: false,
            in_watch: false,
            acknowledged: 0,
            note_room: false,
            note_lost: None,
            in_notes: false,
            broken: None,
        }
    }

    /// A connection that is being opened.
    pub fn connecting(fd: OwnedFd) -> Connection {
        Connection { connecting: true, ..Connection::opened(fd) }
    }

    /// Whether reading could yield something that may be told.
    pub fn wants_read(&self) -> bool {
        let live = !self.connecting && !self.peer_finished && self.note_lost.is_none();
        live && self.readable && (self.granted > 0 || self.hung_up || self.broken.is_some())
    }

    /// Whether both directions have ended and the kernel has taken all of ours.
    pub fn is_over(&self) -> bool {
        self.peer_finished && self.shut && self.out.is_empty()
    }

    /// Reads once, at most what is granted.
    pub fn read(&mut self, buffer: &mut [u8]) -> Read {
        let asked = usize::try_from(self.granted).unwrap_or(usize::MAX).min(buffer.len());
        if asked == 0 {
            return self.look_for_the_end();
        }
        match recv_once(&self.fd, &mut buffer[..asked], RecvFlags::DONTWAIT) {
            Ok(0) => self.ended(),
            Ok(length) => {
                self.granted -= length as u64;
                self.received += length as u64;
                // A short read has emptied the queue, so the next byte is a new event, and another read would be
                // in vain; unless the end is already there, or an urgent mark stopped the read.
                self.readable = length == asked || self.hung_up || self.urgent || self.broken.is_some();
                Read::Data { length, end: self.received }
            }
            Err(error) => self.not_read(error),
        }
    }

    /// Without a grant nothing may be delivered, but an end without bytes before it is told.
    fn look_for_the_end(&mut self) -> Read {
        if let Some(reason) = self.broken {
            return Read::Lost(reason);
        }
        match recv_once(&self.fd, &mut [0], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Ok(0) => self.ended(),
            // The next grant makes us read.
            Ok(_) => Read::Nothing,
            Err(error) => self.not_read(error),
        }
    }

    fn ended(&mut self) -> Read {
        self.readable = false;
        if let Some(reason) = self.broken {
            return Read::Lost(reason);
        }
        self.peer_finished = true;
        Read::Finished
    }

    fn not_read(&mut self, error: Errno) -> Read {
        if error == Errno::AGAIN {
            self.readable = false;
            self.urgent = false;
            return self.broken.map_or(Read::Nothing, Read::Lost);
        }
        self.readable = false;
        Read::Lost(self.broken.unwrap_or(reason(error)))
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

/// What an error of the host says about a connection.
pub fn reason(error: Errno) -> LostReason {
    match error {
        Errno::CONNREFUSED => LostReason::Refused,
        Errno::CONNRESET | Errno::PIPE => LostReason::Reset,
        Errno::TIMEDOUT => LostReason::TimedOut,
        _ => LostReason::Failed,
    }
}
