//! How a link is opened, and what its opening end tells.

use spillway_auth::Key;
use spillway_wire::preamble::Role;
use spillway_wire::{CloseReason, Control, Id, RefuseReason};

use crate::limits::Limits;
use crate::policy::PolicyKind;
use crate::records::Encryption;

/// How a link is opened.
#[derive(Clone, Debug)]
pub struct OpenerConfig {
    /// Helper or library client.
    pub role: Role,
    /// The key that the server accepts for this role.
    pub key: Key,
    /// Bounds. The server's own bound on connections counts too.
    pub limits: Limits,
    /// When batches go.
    pub policy: PolicyKind,
    /// Whether the link is encrypted.
    pub encryption: Encryption,
}

/// What a link tells its opener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenerEvent<'a> {
    /// Both ends have authenticated: connections may be opened.
    Established {
        /// How many.
        connections_max: u32,
    },
    /// The server's application accepted a connection.
    Accepted {
        /// Which.
        id: Id,
    },
    /// A connection was refused; its requests were not delivered. Its id is free again.
    Refused {
        /// Which.
        id: Id,
        /// Why.
        reason: RefuseReason,
    },
    /// Bytes from the server, within the connection's window; say [`OpenerLink::consumed`] when they are gone.
    Data {
        /// Whose.
        id: Id,
        /// The bytes, never empty.
        bytes: &'a [u8],
    },
    /// The server has taken requests up to this offset: they do not depend on this end any more. Where
    /// [`OpenerLink::hears_what_is_taken`].
    Taken {
        /// Whose.
        id: Id,
        /// Stream offset of requests.
        through: u64,
        /// The *finish* as well.
        is_finished: bool,
    },
    /// The server sends no more on this connection.
    Finished {
        /// Which.
        id: Id,
    },
    /// The connection is closed by the server, or broken: call [`OpenerLink::close`] in answer; its id is free
    /// only then.
    Closed {
        /// Which.
        id: Id,
        /// Why.
        reason: CloseReason,
    },
    /// The server wants the link's connections moved away within this time.
    Drain {
        /// Milliseconds.
        deadline_ms: u32,
    },
    /// A frame of a relayed connection, as it came.
    RelayedData {
        /// Whose.
        id: Id,
        /// The bytes, never empty.
        bytes: &'a [u8],
        /// This piece ends a message.
        last: bool,
    },
    /// A control message of a relayed connection, as it came.
    RelayedControl {
        /// Whose.
        id: Id,
        /// The message.
        control: Control,
    },
}

/// No connection can be opened now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The link is not established.
    NotEstablished,
    /// All ids of this link are in use.
    Full,
    /// The server's end of the link is too old to carry sessions.
    Sessions,
}
