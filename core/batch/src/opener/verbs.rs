//! Operations on one of the opener's own connections.

use spillway_wire::{CloseReason, Id};

use super::OpenerLink;
use crate::error::ConsumedTooMuch;

impl OpenerLink {
    /// Takes a prefix of a request, as far as credit and the bound on pending bytes allow, and returns its
    /// length. After a partial take, [`poll_room`](Self::poll_room) returns the connection when there is
    /// room.
    pub fn compose(&mut self, id: Id, request: &[u8]) -> usize {
        self.link_end.compose(id, request)
    }

    /// Bytes that `compose` would take now.
    pub fn room(&self, id: Id) -> usize {
        self.link_end.room(id)
    }

    /// Bytes that the server's credit still allows this connection to send.
    pub fn credit(&self, id: Id) -> usize {
        self.link_end.get(id).map_or(0, |connection| connection.outgoing.credit())
    }

    /// A connection with room again after `compose` took only a part. Call until `None`, after each input and batch.
    #[must_use]
    pub fn poll_room(&mut self) -> Option<Id> {
        self.link_end.poll_room()
    }

    /// Whether [`poll_room`](Self::poll_room) may return a connection.
    pub fn has_room(&self) -> bool {
        self.link_end.has_room()
    }

    /// Makes [`poll_room`](Self::poll_room) return this connection when the server next raises its credit.
    /// For a caller that reads at most [`credit`](Self::credit) bytes from its client.
    pub fn want_room(&mut self, id: Id) {
        self.link_end.want_credit(id);
    }

    /// Raises the window. The server receives the larger credit when bytes are next [consumed](Self::consumed).
    pub fn raise_window(&mut self, id: Id, window: u32) {
        if let Some(connection) = self.link_end.get_mut(id) {
            connection.incoming.raise_window(window);
        }
    }

    /// Counts delivered bytes of replies: the server may send as many more. Fails, without effect, if fewer bytes were
    /// received.
    pub fn consumed(&mut self, id: Id, bytes: usize) -> Result<(), ConsumedTooMuch> {
        self.link_end.consumed(id, bytes)
    }

    /// Ends the stream of requests; replies may still arrive.
    pub fn finish(&mut self, id: Id) {
        self.link_end.finish(id);
    }

    /// Closes this end. Also required after [`OpenerEvent::Closed`](crate::OpenerEvent::Closed): the id becomes free when
    /// both ends have closed.
    pub fn close(&mut self, id: Id, reason: CloseReason) {
        if self.link_end.close(id, reason) {
            self.ids.release(id);
        }
    }
}
