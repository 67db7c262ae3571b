//! Bounds of links, and what links count.

use core::time::Duration;

use spillway_wire::preamble::Role;

/// Capacity, in bytes, up to which a client's link keeps empty buffers, at both ends: a server, or a sidecar, has
/// thousands of such links.
pub(crate) const CLIENT_SPARE_BYTES_MAX: usize = 8 * 1024;

/// Bytes of control messages that may wait for transmission before a link is to be read no more: a peer that causes
/// answers and does not read them waits, and nobody else.
pub const CONTROL_BYTES_MAX: usize = 64 * 1024;

/// Virtual connections on the link of a client.
pub const CLIENT_CONNECTIONS_MAX: u32 = 16;

/// Bounds of one end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of each connection that may be received and not yet consumed.
    pub window_bytes: u32,
    /// Bytes that may wait for transmission before `compose` takes no more. Control messages come on top: see
    /// [`CONTROL_BYTES_MAX`].
    pub pending_bytes_max: usize,
    /// Virtual connections on one link of a helper. A client's link has [`CLIENT_CONNECTIONS_MAX`] at most.
    pub connections_max: u32,
    /// At a server's end: replies of each plain connection that may wait for the client's own TCP to acknowledge them,
    /// where the helper tells of that. 0: they are not kept.
    pub kept_bytes_max: usize,
    /// How long the peer may take to authenticate.
    pub handshake_timeout: Duration,
}

impl Limits {
    /// Virtual connections on a link of a peer of this role.
    pub(crate) fn connections_max_of(&self, role: Role) -> u32 {
        connections_max_of(role, self.connections_max)
    }
}

/// A client opens one virtual connection after the other: a helper has many clients, a client is one.
pub(crate) fn connections_max_of(role: Role, helpers_max: u32) -> u32 {
    match role {
        Role::Helper => helpers_max,
        Role::Client => helpers_max.min(CLIENT_CONNECTIONS_MAX),
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            window_bytes: 256 * 1024,
            pending_bytes_max: 4 * 1024 * 1024,
            connections_max: 65_536,
            kept_bytes_max: 256 * 1024,
            handshake_timeout: Duration::from_secs(5),
        }
    }
}

/// What one end of a link has done since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Batches sent.
    pub batches_sent: u64,
    /// Data messages sent.
    pub messages_sent: u64,
    /// Bytes sent, headers and control included.
    pub bytes_sent: u64,
    /// Data messages received.
    pub messages_received: u64,
    /// Bytes of data received.
    pub bytes_received: u64,
    /// Frames of connections that we do not know (any more), passed over.
    pub strays: u64,
    /// How often `compose` took less than it was given.
    pub stalls: u64,
}
