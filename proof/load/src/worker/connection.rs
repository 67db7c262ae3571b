//! One connection as its worker sees it.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::net::{RecvFlags, SendFlags};

use spillway_client::relief::Member;

use super::session_link::SessionLink;
use crate::clock::Clock;
use crate::protocol::Sent;
use crate::queue::Line;
use crate::report::Target;

/// How far a connection is.
#[derive(Debug, Default)]
pub(crate) enum Link {
    /// Not open: it waits to be opened (again).
    #[default]
    Closed,
    /// The kernel is connecting it.
    Opening {
        /// The socket.
        socket: OwnedFd,
        /// When that has taken too long.
        limit_ns: u64,
    },
    /// Open: plain TCP, for runs without helpers.
    Plain(OwnedFd),
    /// A moving client, for runs with helpers.
    Library {
        /// Everything of it, direct or helped.
        connection: Box<spillway_moving_client::Connection>,
        /// It was connected once.
        open: bool,
        /// The carrier that is wanted is ready to be used.
        prepared: bool,
        /// Its carrier is lost, and the direct one is being made ready.
        falling_back: bool,
    },
    /// The client library's, for runs with sessions.
    Session(Box<SessionLink>),
}

/// The one request under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub sent: Sent,
    pub intended_ns: u64,
}

/// A connection, at most one request under way, and what waits for it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub link: Link,
    pub pending: Option<Pending>,
    pub waiting: Line,
    /// The beginning of a reply that came in pieces. Empty almost always.
    pub partial: Vec<u8>,
    /// The end of a request that the socket had no room for. Empty almost always.
    pub unsent: Vec<u8>,
    /// How its bytes travel now.
    pub carrier: Target,
    /// How they are to travel.
    pub wanted: Target,
    /// While it is wanted elsewhere nothing new is sent, but no longer than until then: a helper that does not
    /// answer must not keep anybody from the server.
    pub hold_until_ns: u64,
    /// Part of the current move, and no reply by the new carrier yet.
    pub awaited: bool,
    /// What its group calls it, if it goes to helpers by itself.
    pub member: Option<Member>,
    /// Failed attempts to open it since it was last open.
    pub attempts: u32,
}

impl Default for Connection {
    fn default() -> Connection {
        Connection {
            link: Link::Closed,
            pending: None,
            waiting: Line::default(),
            partial: Vec::new(),
            unsent: Vec::new(),
            carrier: Target::Direct,
            wanted: Target::Direct,
            hold_until_ns: 0,
            awaited: false,
            member: None,
            attempts: 0,
        }
    }
}

impl Connection {
    /// Whether requests can be sent, now or after the reply under way.
    pub fn is_open(&self) -> bool {
        match &self.link {
            Link::Plain(_) | Link::Library { open: true, falling_back: false, .. } => true,
            Link::Session(session) => session.is_open,
            _ => false,
        }
    }

    /// Whether no request is under way, and none waits.
    pub fn is_idle(&self) -> bool {
        self.is_open() && self.pending.is_none() && self.waiting.is_empty()
    }

    /// Whether a new request would be in the way of a move.
    pub fn is_held(&self, clock: Clock) -> bool {
        let prepared = match self.link {
            Link::Library { prepared, .. } => prepared,
            // Requests may be under way when it moves.
            Link::Session(_) => return false,
            _ => false,
        };
        self.wanted != self.carrier && (prepared || clock.now_ns() < self.hold_until_ns)
    }
}

impl Link {
    /// Sends what there is room for. One system call.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = match self {
            Link::Plain(socket) => {
                rustix::net::send(socket, bytes, SendFlags::NOSIGNAL).map_err(io::Error::from)
            }
            Link::Library { connection, .. } => connection.send(bytes),
            Link::Session(link) => link.session.send(Instant::now(), bytes),
            Link::Closed | Link::Opening { .. } => Err(io::ErrorKind::NotConnected.into()),
        };
        match sent {
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
            other => other,
        }
    }

    /// Receives what has come; 0 is the end. One system call.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Link::Plain(socket) => Ok(rustix::net::recv(socket, buffer, RecvFlags::empty())?.0),
            Link::Library { connection, .. } => connection.receive(buffer),
            Link::Session(link) => link.session.receive(Instant::now(), buffer),
            Link::Closed | Link::Opening { .. } => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}
