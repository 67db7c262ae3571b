//! Operations of a server's application on one connection.

use spillway_wire::{CloseReason, Control, Id, RefuseReason};

use super::{ServerLink, Stage};
#[cfg(doc)]
use crate::ServerEvent;
use crate::connection::Connection;
use crate::error::ConsumedTooMuch;
use crate::event::Info;
use crate::kept::Unacknowledged;

impl ServerLink {
    /// Tells the client that the application accepted its connection.
    pub fn accept(&mut self, id: Id) {
        if self.ends.get(id).is_some_and(|connection| !connection.is_closed_there()) {
            self.ends.batching.control(id, Control::Accepted);
        }
    }

    /// Refuses a connection that is not accepted: its id is free, and the client's requests count as undelivered.
    pub fn refuse(&mut self, id: Id, reason: RefuseReason) {
        if self.ends.get(id).is_some() {
            self.ends.batching.control(id, Control::Refused(reason));
            self.ends.remove(id);
        }
    }

    /// Sends a session's control message on the connection that carries it.
    pub fn say(&mut self, id: Id, control: Control) {
        match control {
            Control::Close(reason) => self.close(id, reason),
            _ if self.is_open(id) => self.ends.batching.control(id, control),
            _ => {}
        }
    }

    /// Takes a prefix of a reply, as far as credit and pending bytes allow, and returns its length. If that is less
    /// than all, [`poll_room`](Self::poll_room) names the connection when there is room.
    pub fn compose(&mut self, id: Id, reply: &[u8]) -> usize {
        let taken = self.ends.compose(id, reply);
        if let Some(allowance) = &mut self.allowance {
            allowance.carried(taken);
        }
        taken
    }

    /// Bytes that `compose` would take now.
    pub fn room(&self, id: Id) -> usize {
        self.ends.room(id)
    }

    /// A connection with room again after `compose` took less than all. Call until `None`, after each input and batch.
    #[must_use]
    pub fn poll_room(&mut self) -> Option<Id> {
        self.ends.poll_room()
    }

    /// Counts bytes that the application has read: the client may send as many more. Fails, changing nothing, beyond
    /// those received.
    pub fn consumed(&mut self, id: Id, bytes: usize) -> Result<(), ConsumedTooMuch> {
        self.ends.consumed(id, bytes)
    }

    /// Ends the stream of replies; requests may still arrive.
    pub fn finish(&mut self, id: Id) {
        self.ends.finish(id);
    }

    /// The application has closed the connection, or closes it after [`ServerEvent::Closed`].
    pub fn close(&mut self, id: Id, reason: CloseReason) {
        self.ends.close(id, reason);
    }

    /// Asks the peer to move its connections away within this time, in milliseconds.
    pub fn drain(&mut self, deadline_ms: u32) {
        self.ends.batching.control(Id::LINK, Control::Drain { deadline_ms });
    }

    /// The client and the byte counts of a connection; `None` after its end.
    pub fn info(&self, id: Id) -> Option<Info> {
        let connection = self.ends.get(id)?;
        let Stage::Established { role, .. } = self.stage else { return None };
        Some(Info {
            client: connection.client()?,
            role,
            bytes_received: connection.incoming.offset(),
            bytes_sent: connection.outgoing.offset(),
        })
    }

    /// Replies of a plain connection that the client's TCP has not acknowledged, if its helper reports that. They are
    /// discarded when the connection or the link ends.
    pub fn unacknowledged(&self, id: Id) -> Option<Unacknowledged<'_>> {
        self.ends.get(id)?.outgoing.kept()
    }

    /// Whether neither end has closed and the peer has broken no rule.
    pub fn is_open(&self, id: Id) -> bool {
        self.ends.get(id).is_some_and(Connection::is_open)
    }
}
