//! One session, as both applications see it.

use spillway_wire::session::SessionId;

/// One session, as both applications see it.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    pub(super) token: u64,
    pub(super) written: u64,
    pub(super) finished: bool,
    pub(super) closed_by_client: bool,
    /// Reset by the client or by the server.
    pub(super) is_reset: bool,
    pub(super) read_by_server: u64,
    pub(super) replied: u64,
    pub(super) replied_all: bool,
    pub(super) closed_by_server: bool,
    pub(super) read_by_client: u64,
    /// The client has received the end of the replies.
    pub(super) saw_reply_end: bool,
    /// Epoch of the client's last opening message.
    pub(super) epoch_sent: u32,
    /// Epoch of the last opening message that the present server process accepted.
    pub(super) epoch_accepted: u32,
    /// Life that the server gave the session; `None` while the server has no such session.
    pub(super) server_life: Option<u64>,
    /// Life in the first answer that the client accepted.
    pub(super) client_life: Option<u64>,
    /// Highest offset that a server acknowledged and the client received.
    pub(super) acknowledged: u64,
    /// A server had the session and lost it: by a restart, or because the client did not return in time.
    pub(super) was_forgotten: bool,
    /// A server answered *gone* when it no longer had to keep a record of the session's end.
    pub(super) may_be_forgotten: bool,
    pub(super) was_reported_gone: bool,
    pub(super) ended_at_client: bool,
}

impl Entry {
    /// A session that its client begins.
    pub(super) fn begun(id: SessionId) -> Entry {
        Entry { token: token_of(id), ..Entry::default() }
    }

    /// Whether the server's session is not the client's, because a delayed or replayed opening message began
    /// it. The application of such a session receives no bytes.
    pub(super) fn is_stale(&self) -> bool {
        self.ended_at_client || (self.client_life.is_some() && self.client_life != self.server_life)
    }

    /// Whether the client has closed the session, and neither end has reset it.
    pub(super) fn closed_in_order(&self) -> bool {
        self.closed_by_client && !self.is_reset
    }
}

fn token_of(id: SessionId) -> u64 {
    let mut token = [0; 8];
    token.copy_from_slice(&id.0[..8]);
    u64::from_le_bytes(token)
}
