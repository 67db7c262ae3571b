//! What the links tell the application.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use spillway_batch::{CloseReason, Forbidden, Id, LinkError, Role};
use spillway_session::SessionHandle;

/// A link. Slots are reused; the generation tells their users apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId {
    /// Which of the threads that share the port has it.
    pub(crate) thread: u32,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// A client's connection: a virtual connection on a link, or a session, which goes on when its link is lost. Good as a
/// key: no other has the same until this one is closed on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client(pub(crate) Name);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Name {
    Plain(LinkId, Id),
    Session(SessionHandle),
}

/// Something that happened.
#[derive(Debug)]
pub enum Event<'a> {
    /// A client connects: answer with [`accept`](crate::Links::accept) or [`refuse`](crate::Links::refuse), now
    /// or later. Its requests may come before the answer.
    Connected {
        /// The new connection.
        client: Client,
        /// The client's own address.
        address: SocketAddr,
    },
    /// Bytes of a client, cut anywhere. Say [`consumed`](crate::Links::consumed) when they are dealt with: until
    /// then they count against the client's window.
    Data {
        /// Whose.
        client: Client,
        /// Never empty.
        bytes: &'a [u8],
    },
    /// Requests of a link's plain connections as they came: whole frames, each with its header (`spillway-wire` reads
    /// them). Only of [`decompose_run`](crate::Links::decompose_run). Say [`forwarded`](crate::Links::forwarded) when they
    /// have been passed on: until then they count against their clients' windows.
    Run {
        /// Which link's.
        link: LinkId,
        /// Never empty.
        bytes: &'a [u8],
    },
    /// The client sends no more. Replies still reach it.
    Finished {
        /// Which.
        client: Client,
    },
    /// The connection has ended. Forget it, and call [`close`](crate::Links::close).
    Closed {
        /// Which.
        client: Client,
        /// Why.
        reason: CloseReason,
    },
    /// `compose` took less than it was given, and would take more now.
    Room {
        /// Whose.
        client: Client,
    },
    /// A link has authenticated. For the log.
    LinkOpened {
        /// Which.
        link: LinkId,
        /// The other end of its TCP connection.
        peer: SocketAddr,
        /// Who it is.
        role: Role,
    },
    /// A link is gone; each of its connections was told as closed before, but sessions go on. For the log.
    LinkLost {
        /// Which.
        link: LinkId,
        /// The other end of its TCP connection.
        peer: SocketAddr,
        /// Why.
        why: LinkEnd,
    },
    /// A link claimed a client address that it may not carry. That connection was refused. For the log.
    Forbidden {
        /// Which link.
        link: LinkId,
        /// The address claimed.
        address: SocketAddr,
        /// Why not.
        why: Forbidden,
    },
    /// A helper wants to go away within this time, in milliseconds; it moves its clients itself. For the log.
    Drain {
        /// Which link.
        link: LinkId,
        /// 0 is at once.
        deadline_ms: u32,
    },
}

/// Why a link is gone.
#[derive(Debug)]
pub enum LinkEnd {
    /// The other side closed it.
    Closed,
    /// Its socket failed.
    Socket(io::Error),
    /// The other side broke the rules of links, or did not authenticate.
    Broken(LinkError),
    /// Too many links had not authenticated, and this was the oldest.
    Crowded,
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkEnd::Closed => f.write_str("closed by the other side"),
            LinkEnd::Socket(error) => error.fmt(f),
            LinkEnd::Broken(error) => error.fmt(f),
            LinkEnd::Crowded => {
                f.write_str("too many links had not authenticated yet, and it was dropped for a newer one")
            }
        }
    }
}
