//! A link whose connection is open. [`connections`] has the virtual connections of its clients, [`batches`] what it sends.

mod batches;
mod connections;
mod members;

use alloc::vec::Vec;

use spillway_batch::{Fresh, KeyId, LinkError, OpenerConfig, OpenerEvent, OpenerLink, PolicyKind, Scratch};
use spillway_transport::{Chunk, Conn, Time};

use crate::counters::{Past, Stalls};
use crate::links::linked::members::Members;

pub(crate) use batches::BATCH_BYTES;

/// Bytes that a server may have under way to us. What it sends is handled at once, so this bounds nothing here
/// but keeps its batches flowing.
pub(crate) const LINK_GRANT_BYTES: u32 = 1 << 20;

/// A link whose connection is open.
#[derive(Debug)]
pub(crate) struct Linked {
    conn: Conn,
    opener: OpenerLink,
    /// The largest window of one of its plain clients.
    window_bytes_max: u32,
    /// The key that it was opened with.
    key: KeyId,
    /// Connections of library clients that have not ended on both sides.
    relayed: u32,
    /// Both ends have authenticated.
    is_up: bool,
    /// The server wants no more clients here.
    is_draining: bool,
    /// What the transport had no room for.
    unsent: Option<Chunk>,
    members: Members,
    /// Clients that get no grant until the link has drained.
    starved: Vec<Conn>,
    /// Of its plain clients.
    stalls: Stalls,
    /// Of its batches' memory, what the relay's counts.
    counted: usize,
}

/// The link as a whole.
impl Linked {
    pub(crate) fn new(now: Time, conn: Conn, config: &OpenerConfig, fresh: Fresh) -> Linked {
        Linked {
            conn,
            opener: OpenerLink::new(config, now, fresh),
            window_bytes_max: config.limits.window_bytes,
            key: config.key.id(),
            relayed: 0,
            is_up: false,
            is_draining: false,
            unsent: None,
            members: Members::default(),
            starved: Vec::new(),
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

    pub(crate) fn came_up(&mut self) {
        self.is_up = true;
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// The server wants no more clients here.
    pub(crate) fn server_drains(&mut self) {
        self.is_draining = true;
    }

    pub(crate) fn takes_clients(&self) -> bool {
        self.is_up && !self.is_draining
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.opener.is_encrypted()
    }

    /// What each connection may send at first.
    pub(crate) fn initial_credit(&self) -> u32 {
        self.opener.initial_credit()
    }

    /// The largest window of one of its plain clients.
    pub(crate) fn window_bytes_max(&self) -> u32 {
        self.window_bytes_max
    }

    pub(crate) fn set_policy(&mut self, policy: PolicyKind) {
        self.opener.set_policy(policy);
    }

    /// Connections that have not ended on both sides.
    pub(crate) fn connections(&self) -> usize {
        self.opener.connections() + self.relayed as usize
    }

    /// Adds what it has done since its connection was opened.
    pub(crate) fn add_to(&self, done: &mut Past) {
        done.add(self.opener.counters(), &self.opener.batches(), self.stalls);
    }

    /// Opens the records in what the server has sent.
    pub(crate) fn unseal<'a>(&mut self, now: Time, bytes: &'a [u8], scratch: &'a mut Scratch) -> &'a [u8] {
        self.opener.unseal(now, bytes, scratch)
    }

    /// The next event in what the server has sent.
    pub(crate) fn decompose<'a>(
        &mut self,
        now: Time,
        input: &mut &'a [u8],
    ) -> Result<Option<OpenerEvent<'a>>, LinkError> {
        self.opener.decompose(now, input)
    }

    /// When something is due. While the transport has no room, its `Room` comes and not the time.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        if self.unsent.is_some() { self.opener.poll_record_timeout() } else { self.opener.poll_timeout() }
    }

    pub(crate) fn handle_timeout(&mut self, now: Time) -> Result<(), LinkError> {
        self.opener.handle_timeout(now)
    }

    /// Clients may go on in the next turn, although nothing has to happen before.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.opener.has_room() || (!self.is_congested() && !self.starved.is_empty())
    }

    /// Whether a turn without new events would do nothing.
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.is_unfinished() && self.counted == self.to_count()
    }
}
