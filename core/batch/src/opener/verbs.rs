//! Operations on one of the opener's own connections.

use spillway_wire::{CloseReason, Id};

use super::OpenerLink;
use crate::error::ConsumedTooMuch;

impl OpenerLink {
    /// Takes a prefix of a request, as far as credit and pending bytes allow, and returns its length. If that is less
    /// than all, [`poll_room`](Self::poll_room) names the connection when there is room.
    pub fn compose(&mut self, id: Id, request: &[u8]) -> usize {
        self.ends.compose(id, request)
    }

    /// Bytes that `compose` would take now.
    pub fn room(&self, id: Id) -> usize {
        self.ends.room(id)
    }

    /// Bytes that the server's credit still allows this connection to send.
    pub fn credit(&self, id: Id) -> usize {
        self.ends.get(id).map_or(0, |connection| connection.outgoing.credit())
    }

    /// A connection with room again after `compose` took less than all. Call until `None`, after each input and batch.
    #[must_use]
    pub fn poll_room(&mut self) -> Option<Id> {
        self.ends.poll_room()
    }

    /// Whether [`poll_room`](Self::poll_room) may return a connection.
    pub fn has_room(&self) -> bool {
        self.ends.has_room()
    }

    /// Makes [`poll_room`](Self::poll_room) name this connection when the server next raises its credit: for a caller
    /// that accepts from its client no more than `credit` allows.
    pub fn want_room(&mut self, id: Id) {
        self.ends.want_room(id);
    }

    /// Raises the window. The server receives the larger credit when bytes are next [consumed](Self::consumed).
    pub fn widen(&mut self, id: Id, window: u32) {
        if let Some(connection) = self.ends.get_mut(id) {
            connection.incoming.widen(window);
        }
    }

    /// Counts delivered bytes of replies: the server may send as many more. Fails, changing nothing, beyond those
    /// received.
    pub fn consumed(&mut self, id: Id, bytes: usize) -> Result<(), ConsumedTooMuch> {
        self.ends.consumed(id, bytes)
    }

    /// Ends the stream of requests; replies may still arrive.
    pub fn finish(&mut self, id: Id) {
        self.ends.finish(id);
    }

    /// Closes the connection, or answers [`OpenerEvent::Closed`](crate::OpenerEvent::Closed).
    pub fn close(&mut self, id: Id, reason: CloseReason) {
        if self.ends.close(id, reason) {
            self.ids.release(id);
        }
    }
}
