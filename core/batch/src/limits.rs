use core::time::Duration;

use spillway_wire::preamble::Role;

/// Maximum capacity, in bytes, of an empty buffer that a client's link keeps. Small, because a server has thousands of
/// such links.
pub(crate) const CLIENT_SPARE_BYTES_MAX: usize = 8 * 1024;

/// An accepting end does not read its link while more than this number of bytes of control messages wait for
/// transmission. So a peer that causes answers and does not read them stops only its own link.
pub const CONTROL_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of virtual connections on a client's link.
pub const CLIENT_CONNECTIONS_MAX: u32 = 16;

/// Bounds of one end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that the peer may send on each connection before the application consumes them.
    pub window_bytes: u32,
    /// Bytes of data that may wait for transmission; control messages have their own bound, [`CONTROL_BYTES_MAX`].
    pub pending_bytes_max: usize,
    /// Maximum number of virtual connections on a link; on a client's link also at most [`CLIENT_CONNECTIONS_MAX`].
    pub connections_max: u32,
    /// At a server's end: bytes of each plain connection's replies that may wait for the client's TCP to acknowledge
    /// them, if the helper reports acknowledgements. 0: replies are not kept.
    pub kept_bytes_max: usize,
    /// How long the peer may take to authenticate.
    pub handshake_timeout: Duration,
}

impl Limits {
    pub(crate) fn connections_max_of(&self, role: Role) -> u32 {
        connections_max_of(role, self.connections_max)
    }
}

/// A client uses one virtual connection after another, so its link needs few; a helper's link serves many clients.
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

/// Counters of one end of a link since it began.
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
    /// Ignored frames: those of unknown or ended connections, and unexpected *drain* messages.
    pub unknown_frames: u64,
    /// Calls of `compose` that took fewer bytes than they were given.
    pub stalls: u64,
}
