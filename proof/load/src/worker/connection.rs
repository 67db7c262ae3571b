//! One connection of a worker.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::net::{RecvFlags, SendFlags};

use spillway_client::relief::Member;

use super::session_state::SessionState;
use crate::clock::Clock;
use crate::protocol::Sent;
use crate::queue::Queue;
use crate::report::Target;

#[derive(Debug, Default)]
pub(crate) enum State {
    /// Not open: waits in `Worker::to_open` or for a timer.
    #[default]
    Closed,
    /// The kernel is connecting the socket.
    Opening { socket: OwnedFd, deadline_ns: u64 },
    /// An open TCP connection, in runs without helpers.
    Plain(OwnedFd),
    /// A moving client, in runs with helpers.
    Library {
        connection: Box<spillway_moving_client::Connection>,
        /// The first carrier was established.
        open: bool,
        /// The target carrier is ready for use.
        prepared: bool,
        /// The carrier is lost, and the direct connection is being prepared.
        falling_back: bool,
    },
    /// A session of the client library, in runs with sessions.
    Session(Box<SessionState>),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub sent: Sent,
    pub intended_ns: u64,
}

/// A connection with at most one pending request, and a queue of waiting ones.
#[derive(Debug)]
pub(crate) struct Connection {
    pub state: State,
    pub pending: Option<Pending>,
    pub waiting: Queue,
    /// The received part of an incomplete reply.
    pub partial: Vec<u8>,
    /// The rest of a request that the socket did not take.
    pub unsent: Vec<u8>,
    pub carrier: Target,
    /// The carrier to use. Differs from `carrier` during a move.
    pub target: Target,
    /// Until this time, a move holds new requests back. The limit exists because a helper may never answer.
    pub hold_until_ns: u64,
    /// Part of the current move, without a reply by the new carrier.
    pub awaited: bool,
    /// The connection's identity in its group, if the client library's policy moves it.
    pub member: Option<Member>,
    /// Failed attempts to open the connection since it was last open.
    pub attempts: u32,
}

impl Default for Connection {
    fn default() -> Connection {
        Connection {
            state: State::Closed,
            pending: None,
            waiting: Queue::default(),
            partial: Vec::new(),
            unsent: Vec::new(),
            carrier: Target::Direct,
            target: Target::Direct,
            hold_until_ns: 0,
            awaited: false,
            member: None,
            attempts: 0,
        }
    }
}

impl Connection {
    /// Whether the connection can send requests, now or after the pending reply.
    pub fn is_open(&self) -> bool {
        match &self.state {
            State::Plain(_) | State::Library { open: true, falling_back: false, .. } => true,
            State::Session(session) => session.is_open,
            _ => false,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.is_open() && self.pending.is_none() && self.waiting.is_empty()
    }

    /// Whether a move holds new requests back.
    pub fn is_held(&self, clock: Clock) -> bool {
        let prepared = match self.state {
            State::Library { prepared, .. } => prepared,
            // A session can move with pending requests.
            State::Session(_) => return false,
            _ => false,
        };
        self.target != self.carrier && (prepared || clock.now_ns() < self.hold_until_ns)
    }
}

impl State {
    /// Sends what the socket takes, and returns the number of bytes. One system call.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = match self {
            State::Plain(socket) => {
                rustix::net::send(socket, bytes, SendFlags::NOSIGNAL).map_err(io::Error::from)
            }
            State::Library { connection, .. } => connection.send(bytes),
            State::Session(state) => state.session.send(Instant::now(), bytes),
            State::Closed | State::Opening { .. } => Err(io::ErrorKind::NotConnected.into()),
        };
        match sent {
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
            other => other,
        }
    }

    /// Receives available bytes; 0 is the end of the stream. One system call.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            State::Plain(socket) => Ok(rustix::net::recv(socket, buffer, RecvFlags::empty())?.0),
            State::Library { connection, .. } => connection.receive(buffer),
            State::Session(state) => state.session.receive(Instant::now(), buffer),
            State::Closed | State::Opening { .. } => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}
