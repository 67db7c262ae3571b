//! One link of a helper.

use alloc::vec::Vec;
use core::net::SocketAddr;

use spillway_batch::{Id, IdTable, ServerLink};
use spillway_transport::{Chunk, Conn, Time, Transport};

/// Bytes that a peer may send ahead on a link.
pub(crate) const LINK_GRANT_BYTES: u32 = 256 * 1024;

/// One link: the protocol's end, its clients, and what waits to be sent.
#[derive(Debug)]
pub(crate) struct Link {
    conn: Conn,
    pub(crate) peer: SocketAddr,
    pub(crate) end: ServerLink,
    /// The names of its clients.
    names: IdTable<Conn>,
    /// A part of the last batch, which the transport has not taken.
    unsent: Option<Chunk>,
    /// Received bytes that were not granted again, because the link is not read at present.
    ungranted: u32,
    pub(crate) is_authenticated: bool,
    /// The time at which the link is due, as it is filed among those of all links.
    pub(crate) due_at: Option<Time>,
}

impl Link {
    pub(crate) fn new<T: Transport>(conn: Conn, peer: SocketAddr, end: ServerLink, out: &mut T) -> Link {
        out.grant(conn, LINK_GRANT_BYTES);
        Link {
            conn,
            peer,
            end,
            names: IdTable::default(),
            unsent: None,
            ungranted: 0,
            is_authenticated: false,
            due_at: None,
        }
    }

    pub(crate) fn name(&self, id: Id) -> Option<Conn> {
        self.names.get(id).copied()
    }

    pub(crate) fn add(&mut self, id: Id, name: Conn) {
        self.names.insert(id, name);
    }

    pub(crate) fn forget(&mut self, id: Id) {
        self.names.remove(id);
    }

    pub(crate) fn clients(&self) -> Vec<Conn> {
        self.names.iter().map(|(_, name)| *name).collect()
    }

    pub(crate) fn record_received(&mut self, bytes: usize) {
        self.ungranted = self.ungranted.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    /// Lets the peer send on, unless the link must not be read at present.
    pub(crate) fn grant<T: Transport>(&mut self, out: &mut T) {
        if self.ungranted > 0 && self.end.may_read() {
            out.grant(self.conn, core::mem::take(&mut self.ungranted));
        }
    }

    /// When the handshake, a record or a pause in reading is due. What waits to be sent leaves at the end of a turn, or when
    /// the transport has room.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        if self.is_authenticated { self.end.poll_read_timeout() } else { self.end.poll_timeout() }
    }

    /// Sends batches until nothing waits or the transport has no room.
    pub(crate) fn transmit<T: Transport>(&mut self, now: Time, out: &mut T) {
        if let Some(chunk) = self.unsent.take() {
            self.unsent = self.offer(chunk, out);
        }
        while self.unsent.is_none() {
            if let Some(spent) = out.take_recycled_chunk() {
                self.end.recycle(spent);
            }
            let Some(batch) = self.end.flush(now) else { return };
            self.unsent = self.offer(batch, out);
        }
    }

    /// Returns the bytes that the transport did not take. `Room` follows.
    fn offer<T: Transport>(&mut self, chunk: Chunk, out: &mut T) -> Option<Chunk> {
        match out.offer_chunk(self.conn, chunk) {
            Ok(spent) => {
                if let Some(spent) = spent {
                    self.end.recycle(spent);
                }
                None
            }
            Err(rest) => Some(rest),
        }
    }
}
