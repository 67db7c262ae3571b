//! What a client does with one connection of its own.

use spillway_wire::{CloseReason, Id};

use super::OpenerLink;
use crate::error::ConsumedTooMuch;

impl OpenerLink {
    /// Takes a prefix of a request, as far as credit and pending bytes allow, and returns its length. When it is
    /// less than all, [`poll_room`](Self::poll_room) names the connection when it is worth trying again.
    pub fn compose(&mut self, id: Id, request: &[u8]) -> usize {
        self.ends.compose(id, request)
    }

    /// How much `compose` would take now.
    pub fn room(&self, id: Id) -> usize {
        self.ends.room(id)
    }

    /// The absolute offset up to which the server lets this connection send, less what was sent.
    pub fn credit(&self, id: Id) -> usize {
        self.ends.get(id).map_or(0, |connection| connection.outgoing.credit())
    }

    /// A connection whose `compose` fell short and that has room again. Ask until `None`, after each input and
    /// each batch taken.
    #[must_use]
    pub fn poll_room(&mut self) -> Option<Id> {
        self.ends.poll_room()
    }

    /// Whether [`poll_room`](Self::poll_room) may have a connection to name.
    pub fn has_room(&self) -> bool {
        self.ends.has_room()
    }

    /// Asks [`poll_room`](Self::poll_room) to name this connection when the server next raises its credit: for a
    /// caller that accepts from its client no more than `credit` allows.
    pub fn want_room(&mut self, id: Id) {
        self.ends.want_room(id);
    }

    /// A larger window from now on: the server hears of it when bytes are next [consumed](Self::consumed).
    pub fn widen(&mut self, id: Id, window: u32) {
        if let Some(connection) = self.ends.get_mut(id) {
            connection.incoming.widen(window);
        }
    }

    /// This many bytes of a connection's replies are delivered: the server may send as many more.
    ///
    /// # Errors
    /// More than were received; nothing has changed, then.
    pub fn consumed(&mut self, id: Id, bytes: usize) -> Result<(), ConsumedTooMuch> {
        self.ends.consumed(id, bytes)
    }

    /// The client sends no more on this connection.
    pub fn finish(&mut self, id: Id) {
        self.ends.finish(id);
    }

    /// The client has closed the connection, or its end is answered.
    pub fn close(&mut self, id: Id, reason: CloseReason) {
        if self.ends.close(id, reason) {
            self.ids.release(id);
        }
    }
}
