use spillway_auth::Key;
use spillway_wire::preamble::Role;
use spillway_wire::{CloseReason, Control, Id, RefuseReason};

#[cfg(doc)]
use crate::OpenerLink;
use crate::limits::Limits;
use crate::policy::PolicyKind;
use crate::records::Encryption;

/// Configuration of a link's opening end.
#[derive(Clone, Debug)]
pub struct OpenerConfig {
    /// Helper or library client.
    pub role: Role,
    /// The key that the server accepts for this role.
    pub key: Key,
    /// Bounds. The server's bound on connections applies too.
    pub limits: Limits,
    /// The batch policy.
    pub policy: PolicyKind,
    /// Whether the link is encrypted.
    pub encryption: Encryption,
}

/// An event of a link's opening end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenerEvent<'a> {
    /// Both ends have authenticated: connections may be opened.
    Established {
        /// Number of connections that may be open at the same time.
        connections_max: u32,
    },
    /// The server's application accepted a connection.
    Accepted {
        /// The virtual connection.
        id: Id,
    },
    /// A connection was refused; its requests were not delivered. Its id is free again.
    Refused {
        /// The virtual connection.
        id: Id,
        /// The server's reason.
        reason: RefuseReason,
    },
    /// Bytes from the server, within the connection's window. Call [`OpenerLink::consumed`] when they are delivered.
    Data {
        /// The virtual connection.
        id: Id,
        /// The bytes, never empty.
        bytes: &'a [u8],
    },
    /// The server has acknowledged requests up to this offset: they survive a failure of this end. Occurs
    /// only if [`OpenerLink::acknowledges_requests`] is true.
    Acknowledged {
        /// The virtual connection.
        id: Id,
        /// Stream offset of requests.
        through: u64,
        /// Whether the server has received the *finish* too.
        is_finished: bool,
    },
    /// The server has ended its stream of replies.
    Finished {
        /// The virtual connection.
        id: Id,
    },
    /// The server has closed the connection, or violated the protocol. [`OpenerLink::close`] answers and frees the id.
    Closed {
        /// The virtual connection.
        id: Id,
        /// The server's reason, or the kind of violation.
        reason: CloseReason,
    },
    /// The server drains: move the link's connections away before the deadline.
    Drain {
        /// Time left, in milliseconds.
        deadline_ms: u32,
    },
    /// A piece of a relayed connection's reply, unchanged.
    RelayedData {
        /// The virtual connection.
        id: Id,
        /// The bytes, never empty.
        bytes: &'a [u8],
        /// Whether this piece ends a message.
        last: bool,
    },
    /// A control message of a relayed connection, unchanged.
    RelayedControl {
        /// The virtual connection.
        id: Id,
        /// The message.
        control: Control,
    },
}

/// Why no connection can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The link is not established.
    NotEstablished,
    /// All ids of this link are in use.
    Full,
    /// The link's version cannot carry sessions: update the server.
    Sessions,
}
