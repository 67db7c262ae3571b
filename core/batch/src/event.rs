use core::net::SocketAddr;

use spillway_wire::preamble::{KeyId, Role};
use spillway_wire::session::Opening;
use spillway_wire::{CloseReason, Control, Id, Kind};

#[cfg(doc)]
use crate::ServerLink;
use crate::addresses::ForbiddenAddress;

/// An event of a server's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEvent<'a> {
    /// The peer has authenticated.
    Established {
        /// The peer's role.
        role: Role,
        /// The key with which the peer authenticated.
        key: KeyId,
    },
    /// A client connects: answer with [`ServerLink::accept`] or [`ServerLink::refuse`]. Requests may come before that.
    Connect {
        /// The new virtual connection.
        id: Id,
        /// The client's address.
        client: SocketAddr,
        /// The server that the client requests, if the helper states one.
        server: Option<SocketAddr>,
    },
    /// A client address is not allowed, and the connection was refused. The event is for the log.
    Forbidden {
        /// The client address that was refused.
        client: SocketAddr,
        /// Why the address is not allowed.
        why: ForbiddenAddress,
    },
    /// Bytes from a client, within its window. Call [`ServerLink::consumed`] when the application has read them.
    Data {
        /// The virtual connection.
        id: Id,
        /// The bytes, never empty.
        bytes: &'a [u8],
    },
    /// The client has ended its stream of requests.
    Finished {
        /// The virtual connection.
        id: Id,
    },
    /// The peer has closed the connection, or violated the protocol. The connection receives nothing more. Call
    /// [`ServerLink::close`] when the application has closed it too: that frees the id.
    Closed {
        /// The virtual connection.
        id: Id,
        /// The peer's reason, or the kind of violation.
        reason: CloseReason,
    },
    /// A session begins or resumes on a new connection. Pass the event to the table of sessions and send its answer by
    /// [`ServerLink::send_control`], or call [`ServerLink::refuse`].
    Session {
        /// The new virtual connection.
        id: Id,
        /// Kind of the frame: *connect* or *reconnect*.
        kind: Kind,
        /// The client's address.
        client: SocketAddr,
        /// The session's opening message.
        opening: Opening,
    },
    /// Bytes of a session.
    Carried {
        /// The connection that carries the session.
        id: Id,
        /// The bytes, never empty.
        bytes: &'a [u8],
    },
    /// A control message of a session. *close* is the last message; the id is free when our own *close* is sent too.
    CarriedControl {
        /// The connection that carries the session.
        id: Id,
        /// The message.
        control: Control,
    },
    /// The helper drains: move or end its connections before the deadline.
    Drain {
        /// Time left, in milliseconds.
        deadline_ms: u32,
    },
}

/// Information about a virtual connection: the paper's *get_info*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The client's address.
    pub client: SocketAddr,
    /// Whether the connection comes through a helper or from a library client.
    pub role: Role,
    /// Bytes of requests received.
    pub bytes_received: u64,
    /// Bytes of replies sent.
    pub bytes_sent: u64,
}
