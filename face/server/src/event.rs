//! Events of the links for the application.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use spillway_batch::{CloseReason, ForbiddenAddress, Id, LinkError, Role};
use spillway_session::SessionHandle;

/// Identifies a link. Slots are reused; the generation distinguishes a slot's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId {
    /// Among the threads that share the port, the thread that owns the link.
    pub(crate) thread: u32,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Identifies a client's connection: a virtual connection on a link, or a session that outlives links. Unique until the
/// connection is closed by both ends, so it can be a map's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub(crate) Name);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Name {
    Plain(LinkId, Id),
    Session(SessionHandle),
}

/// An event on a link or on one of its connections.
#[derive(Debug)]
pub enum Event<'a> {
    /// A client connects: answer with [`accept`](crate::Links::accept) or [`refuse`](crate::Links::refuse), now
    /// or later. Requests may arrive before the answer.
    Connected {
        /// The new connection.
        client: ClientId,
        /// The client's own address.
        address: SocketAddr,
    },
    /// At least one byte of a client's requests; a request may be split over several events at any byte. Call
    /// [`consumed`](crate::Links::consumed) when they are processed: until then they count against the client's window.
    Data {
        /// The client that sent the bytes.
        client: ClientId,
        /// Never empty.
        bytes: &'a [u8],
    },
    /// Requests of a link's virtual connections without sessions, undecoded: whole frames, each with its header
    /// (`spillway-wire` parses them). Only from [`decompose_run`](crate::Links::decompose_run). Call
    /// [`forwarded`](crate::Links::forwarded) when they are forwarded: until then they count against their clients' windows.
    Run {
        /// The link that the frames arrived on.
        link: LinkId,
        /// Never empty.
        bytes: &'a [u8],
    },
    /// The client sends no more bytes, but still receives replies.
    Finished {
        /// The client that has finished.
        client: ClientId,
    },
    /// The connection has ended. Drop the state kept for it, and call [`close`](crate::Links::close).
    Closed {
        /// The connection that has ended.
        client: ClientId,
        /// Why the connection ended.
        reason: CloseReason,
    },
    /// [`compose`](crate::Links::compose) took less than all bytes before, and would take more now.
    CanCompose {
        /// The client to compose for.
        client: ClientId,
    },
    /// A link has authenticated. For the log.
    LinkOpened {
        /// The new link.
        link: LinkId,
        /// The peer's address of the link's TCP connection.
        peer: SocketAddr,
        /// The peer's role: helper or client.
        role: Role,
    },
    /// A link is lost, after a `Closed` event for each of its connections; its sessions continue. For the log.
    LinkLost {
        /// The lost link.
        link: LinkId,
        /// The peer's address of the link's TCP connection.
        peer: SocketAddr,
        /// Why the link is lost.
        why: LinkLoss,
    },
    /// A virtual connection was refused because its link may not carry its client address. For the log.
    Forbidden {
        /// The link that asked for the connection.
        link: LinkId,
        /// The client address that the link claimed.
        address: SocketAddr,
        /// The address rule that forbids it.
        why: ForbiddenAddress,
    },
    /// A helper drains; it moves its clients itself. For the log.
    Drain {
        /// The helper's link.
        link: LinkId,
        /// The helper's deadline, in milliseconds from now; 0 is at once.
        deadline_ms: u32,
    },
}

/// Why a link is lost.
#[derive(Debug)]
pub enum LinkLoss {
    /// The peer closed the link.
    Closed,
    /// A system call on the link's socket failed.
    Socket(io::Error),
    /// The peer violated the protocol, or did not authenticate.
    ProtocolError(LinkError),
    /// Too many links had not authenticated, and this one was dropped for a newer one.
    Evicted,
}

impl fmt::Display for LinkLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkLoss::Closed => f.write_str("closed by the other side"),
            LinkLoss::Socket(error) => error.fmt(f),
            LinkLoss::ProtocolError(error) => error.fmt(f),
            LinkLoss::Evicted => {
                f.write_str("too many links had not authenticated yet: this one was dropped for a newer one")
            }
        }
    }
}
