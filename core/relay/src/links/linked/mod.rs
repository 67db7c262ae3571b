//! An open link. [`connections`]: the virtual connections of its clients. [`batches`]: its output.

mod batches;
mod connections;
mod members;

use alloc::vec::Vec;

use spillway_batch::{
    KeyId, LinkError, LinkRandomness, OpenerConfig, OpenerEvent, OpenerLink, PolicyKind, Scratch,
};
use spillway_transport::{Chunk, Conn, Time};

use crate::counters::{LinkTotals, Stalls};
use crate::links::linked::members::Members;

pub(crate) use batches::BATCH_BYTES;

/// Bytes that a server may have in flight to the relay: enough for full throughput. The relay handles received bytes at
/// once, so this number bounds no buffer here.
pub(crate) const LINK_GRANT_BYTES: u32 = 1 << 20;

/// A link whose connection is open.
#[derive(Debug)]
pub(crate) struct Linked {
    conn: Conn,
    opener: OpenerLink,
    /// Limit on the window of one plain client.
    window_bytes_max: u32,
    key: KeyId,
    /// Connections of library clients that have not ended on both sides.
    relayed_count: u32,
    /// Whether both ends have authenticated.
    is_up: bool,
    /// The server accepts no more clients on this link.
    is_draining: bool,
    /// Rest of a batch that the transport did not take.
    unsent: Option<Chunk>,
    members: Members,
    /// Clients that get no grant until the transport has taken the batch, in the order in which they resume.
    waiters: Vec<Conn>,
    /// Stalls of the link's plain clients.
    stalls: Stalls,
    /// Bytes that are counted in [`Memory`](crate::memory::Memory).
    counted: usize,
}

impl Linked {
    pub(crate) fn new(now: Time, conn: Conn, config: &OpenerConfig, randomness: LinkRandomness) -> Linked {
        Linked {
            conn,
            opener: OpenerLink::new(config, now, randomness),
            window_bytes_max: config.limits.window_bytes,
            key: config.key.id(),
            relayed_count: 0,
            is_up: false,
            is_draining: false,
            unsent: None,
            members: Members::default(),
            waiters: Vec::new(),
            stalls: Stalls::default(),
            counted: 0,
        }
    }

    pub(crate) fn conn(&self) -> Conn {
        self.conn
    }

    pub(crate) fn key(&self) -> KeyId {
        self.key
    }

    pub(crate) fn is_up(&self) -> bool {
        self.is_up
    }

    pub(crate) fn mark_up(&mut self) {
        self.is_up = true;
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    pub(crate) fn mark_draining(&mut self) {
        self.is_draining = true;
    }

    pub(crate) fn accepts_clients(&self) -> bool {
        self.is_up && !self.is_draining
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.opener.is_encrypted()
    }

    /// Initial credit of each connection in bytes.
    pub(crate) fn initial_credit(&self) -> u32 {
        self.opener.initial_credit()
    }

    pub(crate) fn window_bytes_max(&self) -> u32 {
        self.window_bytes_max
    }

    pub(crate) fn set_policy(&mut self, policy: PolicyKind) {
        self.opener.set_policy(policy);
    }

    /// Connections that have not ended on both sides.
    pub(crate) fn connections(&self) -> usize {
        self.opener.connections() + self.relayed_count as usize
    }

    /// Adds the totals of this connection to those of earlier ones.
    pub(crate) fn add_to(&self, totals: &mut LinkTotals) {
        totals.add(self.opener.counters(), &self.opener.batches(), self.stalls);
    }

    pub(crate) fn unseal<'a>(&mut self, now: Time, bytes: &'a [u8], scratch: &'a mut Scratch) -> &'a [u8] {
        self.opener.unseal(now, bytes, scratch)
    }

    /// The next event in unsealed bytes. Call this until `None`.
    pub(crate) fn decompose<'a>(
        &mut self,
        now: Time,
        input: &mut &'a [u8],
    ) -> Result<Option<OpenerEvent<'a>>, LinkError> {
        self.opener.decompose(now, input)
    }

    /// When the link's next timeout is due. While the transport has no room, batches have no timeout: they wait for the
    /// transport's `Room` event.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        if self.unsent.is_some() { self.opener.poll_record_timeout() } else { self.opener.poll_timeout() }
    }

    pub(crate) fn handle_timeout(&mut self, now: Time) -> Result<(), LinkError> {
        self.opener.handle_timeout(now)
    }

    /// Whether clients can continue in the next turn without a new event.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.opener.has_room() || self.can_resume_waiters()
    }

    /// Whether a turn without new events would do nothing.
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.is_unfinished() && self.counted == self.bytes_to_count()
    }
}
