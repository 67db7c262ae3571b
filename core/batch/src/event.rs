//! What a server's end of a link tells, and what it knows of a connection.

use core::net::SocketAddr;

use spillway_wire::preamble::{KeyId, Role};
use spillway_wire::session::Opening;
use spillway_wire::{CloseReason, Control, Id, Kind};

#[cfg(doc)]
use crate::ServerLink;
use crate::addresses::Forbidden;

/// What a link tells the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEvent<'a> {
    /// The peer has authenticated.
    Established {
        /// Who it is.
        role: Role,
        /// With which key.
        key: KeyId,
    },
    /// A client wants to connect: answer with [`ServerLink::accept`] or [`ServerLink::refuse`], now or later.
    /// Its requests may arrive before the answer.
    Connect {
        /// The new virtual connection.
        id: Id,
        /// The client's address.
        client: SocketAddr,
        /// The server it wants, if it says so.
        server: Option<SocketAddr>,
    },
    /// A client address was not allowed; the connection has been refused. For the log.
    Forbidden {
        /// The address claimed.
        client: SocketAddr,
        /// Why not.
        why: Forbidden,
    },
    /// Bytes from a client, within its window. Keep them until the application has read them, then say
    /// [`ServerLink::consumed`].
    Data {
        /// Whose.
        id: Id,
        /// The bytes, never empty.
        bytes: &'a [u8],
    },
    /// The client sends no more.
    Finished {
        /// Which.
        id: Id,
    },
    /// The connection is closed by the other side, or broken. Nothing more comes of it; call
    /// [`ServerLink::close`] when the application has closed it too: its id is free only then.
    Closed {
        /// Which.
        id: Id,
        /// Why.
        reason: CloseReason,
    },
    /// A session's first words. The connection carries it: answer with what a table of sessions says to them, by
    /// [`ServerLink::say`], or with [`ServerLink::refuse`].
    Session {
        /// The new virtual connection.
        id: Id,
        /// In which kind of frame: *connect* or *reconnect*.
        kind: Kind,
        /// The client's address.
        client: SocketAddr,
        /// What it says of the session.
        opening: Opening,
    },
    /// Bytes of a session.
    Carried {
        /// By which connection.
        id: Id,
        /// The bytes, never empty.
        bytes: &'a [u8],
    },
    /// A control message of a session. After *close* nothing more comes; the id is free when our own
    /// *close* is said too.
    CarriedControl {
        /// By which connection.
        id: Id,
        /// The message.
        control: Control,
    },
    /// The helper wants to go away within this time.
    Drain {
        /// Milliseconds.
        deadline_ms: u32,
    },
}

/// What is known about a virtual connection: the paper's *get_info*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The client's address.
    pub client: SocketAddr,
    /// Whether it comes through a helper or from a client that speaks links itself.
    pub role: Role,
    /// Bytes of requests received.
    pub bytes_received: u64,
    /// Bytes of replies sent.
    pub bytes_sent: u64,
}
