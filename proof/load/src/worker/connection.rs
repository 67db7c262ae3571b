//! One connection as its worker sees it.

use std::os::fd::OwnedFd;

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
    /// Open: plain TCP.
    Plain(OwnedFd),
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
    /// Part of the current move, and no reply by the new carrier yet.
    pub awaited: bool,
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
            awaited: false,
            attempts: 0,
        }
    }
}

impl Connection {
    /// Whether requests can be sent, now or after the reply under way.
    pub fn is_open(&self) -> bool {
        matches!(self.link, Link::Plain(_))
    }

    /// Whether a request can be sent now.
    pub fn is_idle(&self) -> bool {
        self.is_open() && self.pending.is_none() && self.wanted == self.carrier && self.waiting.is_empty()
    }
}
