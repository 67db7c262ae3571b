//! Replies of plain clients, kept until the client's own TCP has acknowledged them to the helper.
//!
//! A plain client has no session: what its helper had and the client had not is lost with the helper. Where a helper
//! asks for it, the server keeps those bytes, so that another helper could go on from what the client has.

use alloc::collections::VecDeque;
use core::net::SocketAddr;

use spillway_wire::session::Acknowledge;
use spillway_wire::{Control, Id};

use crate::connection::Connection;
use crate::opener::{OpenError, OpenerLink};

/// A buffer that has become empty gives its memory back above this size.
const QUIET_BYTES: usize = 16 * 1024;

/// Bytes that were composed and not acknowledged. All offsets count bytes of replies since the connection began.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    bytes: VecDeque<u8>,
    acknowledged: u64,
    bytes_max: usize,
}

/// An acknowledgement of what was never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NeverSent;

/// What a server keeps of a plain connection, see [`ServerLink::unacknowledged`](crate::ServerLink::unacknowledged).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unacknowledged<'a> {
    /// The client's TCP has acknowledged all replies up to this offset; or keeping them began here.
    pub acknowledged: u64,
    /// What follows, in two pieces.
    pub bytes: (&'a [u8], &'a [u8]),
}

impl Kept {
    /// What is composed after `sent` bytes is kept.
    pub(crate) fn new(sent: u64, bytes_max: usize) -> Kept {
        Kept { bytes: VecDeque::new(), acknowledged: sent, bytes_max }
    }

    /// How many bytes more may be composed.
    pub(crate) fn room(&self) -> usize {
        self.bytes_max.saturating_sub(self.bytes.len())
    }

    /// These were composed.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// The client has all bytes up to `through`. What is older than the last acknowledgement changes nothing.
    pub(crate) fn acknowledge(&mut self, through: u64) -> Result<(), NeverSent> {
        let news = through.saturating_sub(self.acknowledged);
        if news > self.bytes.len() as u64 {
            return Err(NeverSent);
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most the length of `bytes`")]
        self.bytes.drain(..news as usize);
        self.acknowledged += news;
        if self.bytes.is_empty() && self.bytes.capacity() > QUIET_BYTES {
            self.bytes = VecDeque::new();
        }
        Ok(())
    }

    pub(crate) fn all(&self) -> Unacknowledged<'_> {
        Unacknowledged { acknowledged: self.acknowledged, bytes: self.bytes.as_slices() }
    }
}

impl OpenerLink {
    /// As [`open`](Self::open), and the server is asked to keep its replies until they are [acknowledged](Self::acknowledge): by an
    /// *acknowledge* before *connect*, so that the first reply is kept too. An old server is not asked.
    pub fn open_kept(&mut self, client: SocketAddr, server: Option<SocketAddr>) -> Result<Id, OpenError> {
        self.open_own(client, server, self.window_bytes, self.carries_sessions())
    }

    /// Tells the server that the client's own TCP has acknowledged replies up to this offset; also after the server has
    /// closed, until we do. Said first of a connection that was not [opened](Self::open_kept) so, it asks the server to
    /// keep replies from now on. To an old server nothing is said.
    pub fn acknowledge(&mut self, id: Id, through: u64) {
        let is_heard = |connection: &Connection| !connection.closed_here && connection.broken.is_none();
        if self.carries_sessions() && self.ends.get(id).is_some_and(is_heard) {
            self.say_acknowledged(id, through);
        }
    }

    pub(crate) fn say_acknowledged(&mut self, id: Id, through: u64) {
        let acknowledge = Acknowledge { received: through, finish_received: false, answer: false };
        self.ends.assembler.control(id, Control::Acknowledge(acknowledge));
    }
}
