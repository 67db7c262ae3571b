//! Operations of a server's application on one connection.

use spillway_wire::{CloseReason, Control, Id, RefuseReason};

use super::ServerLink;
#[cfg(doc)]
use crate::ServerEvent;
use crate::connection::Connection;
use crate::error::ConsumedTooMuch;
use crate::event::Info;
use crate::kept::Unacknowledged;

impl ServerLink {
    /// Sends *accepted*: the application has accepted the connection.
    pub fn accept(&mut self, id: Id) {
        if self.link_end.get(id).is_some_and(|connection| !connection.is_closed_by_peer()) {
            self.link_end.batching.control(id, Control::Accepted);
        }
    }

    /// Refuses a connection that is not accepted yet, and frees its id. The peer treats the connection's requests as not
    /// delivered.
    pub fn refuse(&mut self, id: Id, reason: RefuseReason) {
        if self.link_end.get(id).is_some() {
            self.link_end.batching.control(id, Control::Refused(reason));
            self.link_end.remove(id);
        }
    }

    /// Sends a session's control message on the connection that carries it.
    pub fn send_control(&mut self, id: Id, control: Control) {
        match control {
            Control::Close(reason) => self.close(id, reason),
            _ if self.is_open(id) => self.link_end.batching.control(id, control),
            _ => {}
        }
    }

    /// Takes a prefix of a reply, as far as credit and the bound on pending bytes allow, and returns its
    /// length. After a partial take, [`poll_room`](Self::poll_room) returns the connection when there is
    /// room.
    pub fn compose(&mut self, id: Id, reply: &[u8]) -> usize {
        let taken = self.link_end.compose(id, reply);
        // Data for a library client raises its allowance for control messages.
        self.allowance.earn(taken);
        taken
    }

    /// Bytes that `compose` would take now.
    pub fn room(&self, id: Id) -> usize {
        self.link_end.room(id)
    }

    /// Makes [`poll_room`](Self::poll_room) return this connection when it next gets room: when the peer raises its credit, or
    /// a batch has left a full link. For a caller that reads at most as many bytes as there is room for replies.
    pub fn want_room(&mut self, id: Id) {
        self.link_end.want_room(id);
    }

    /// A connection with room again after `compose` took only a part, or after [`want_room`](Self::want_room). Call until
    /// `None`, after each input and batch.
    #[must_use]
    pub fn poll_room(&mut self) -> Option<Id> {
        self.link_end.poll_room()
    }

    /// Counts bytes that the application has read: the client may send as many more. Fails, without effect, if fewer
    /// bytes were received.
    pub fn consumed(&mut self, id: Id, bytes: usize) -> Result<(), ConsumedTooMuch> {
        self.link_end.consumed(id, bytes)
    }

    /// Ends the stream of replies; requests may still arrive.
    pub fn finish(&mut self, id: Id) {
        self.link_end.finish(id);
    }

    /// Closes this end. Also required after [`ServerEvent::Closed`]: the id becomes free when both ends have closed.
    pub fn close(&mut self, id: Id, reason: CloseReason) {
        self.link_end.close(id, reason);
    }

    /// Requests the peer to move its connections away within this time, in milliseconds.
    pub fn drain(&mut self, deadline_ms: u32) {
        self.link_end.batching.control(Id::LINK, Control::Drain { deadline_ms });
    }

    /// The client and the byte counts of a connection; `None` after its end.
    pub fn info(&self, id: Id) -> Option<Info> {
        let connection = self.link_end.get(id)?;
        Some(Info {
            client: connection.client()?,
            role: self.role()?,
            bytes_received: connection.incoming.offset(),
            bytes_sent: connection.outgoing.sent(),
        })
    }

    /// Replies of a plain connection that the client's TCP has not acknowledged, if its helper reports that. They are
    /// discarded when the connection or the link ends.
    pub fn unacknowledged(&self, id: Id) -> Option<Unacknowledged<'_>> {
        self.link_end.get(id)?.outgoing.kept()
    }

    /// Whether neither end has closed and the peer has not violated the protocol.
    pub fn is_open(&self, id: Id) -> bool {
        self.link_end.get(id).is_some_and(Connection::is_open)
    }
}
