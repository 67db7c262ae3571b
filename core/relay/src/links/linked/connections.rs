//! The virtual connections of a link's clients.

use alloc::vec::Vec;
use core::net::SocketAddr;

use spillway_batch::{CloseReason, ConsumedTooMuch, Control, Id, OpenError};
use spillway_transport::Conn;

use super::Linked;
use crate::counters::Stalls;
use crate::reasons::Refusal;

impl Linked {
    /// The client's connection that an id belongs to.
    pub(crate) fn client(&self, id: Id) -> Option<Conn> {
        self.members.client(id)
    }

    /// Whether an id is this client's: it may be another's by now.
    pub(crate) fn is_of(&self, id: Id, conn: Conn) -> bool {
        self.members.client(id) == Some(conn)
    }

    /// Whether an id is that of a library client that has gone, while the server has not closed yet.
    pub(crate) fn is_orphan(&self, id: Id) -> bool {
        self.members.is_orphan(id)
    }

    pub(crate) fn clients(&self) -> impl Iterator<Item = Conn> + '_ {
        self.members.clients()
    }

    /// A virtual connection for a plain client. `keeps`: the server is asked to keep its replies.
    pub(crate) fn open_plain(
        &mut self,
        conn: Conn,
        peer: SocketAddr,
        window: u32,
        keeps: bool,
    ) -> Result<Id, Refusal> {
        let id = self.opener.open_narrow(peer, window, keeps).map_err(refusal_of)?;
        self.members.put(id, conn);
        Ok(id)
    }

    /// A virtual connection for a library client, whose *connect* or *reconnect* this is.
    pub(crate) fn open_relayed(&mut self, conn: Conn, first_words: Control) -> Result<Id, Refusal> {
        let id = self.opener.open_relayed(first_words).map_err(refusal_of)?;
        self.relayed += 1;
        self.members.put(id, conn);
        Ok(id)
    }

    /// Ends a plain client's connection on this side.
    pub(crate) fn close_plain(&mut self, id: Id, reason: CloseReason) {
        self.opener.close(id, reason);
        self.members.free(id);
    }

    /// The server has refused a plain client's connection: there is nothing to close.
    pub(crate) fn plain_refused(&mut self, id: Id) {
        self.members.free(id);
    }

    /// A library client's connection has ended on both sides: the id is free.
    pub(crate) fn release_relayed(&mut self, id: Id) {
        self.members.free(id);
        self.opener.release_relayed(id);
        self.relayed -= 1;
    }

    /// A library client has left a connection that the server has not closed yet.
    pub(crate) fn orphan(&mut self, id: Id) {
        self.members.orphan(id);
    }

    /// Whether replies are kept by the server until they are acknowledged.
    pub(crate) fn carries_sessions(&self) -> bool {
        self.opener.carries_sessions()
    }

    /// Whether the server says which requests it has taken.
    pub(crate) fn hears_what_is_taken(&self) -> bool {
        self.opener.hears_what_is_taken()
    }

    pub(crate) fn relay_data(&mut self, id: Id, bytes: &[u8], last: bool) {
        self.opener.relay_data(id, bytes, last);
    }

    pub(crate) fn relay_control(&mut self, id: Id, control: Control) {
        self.opener.relay_control(id, control);
    }

    /// Takes a prefix of a plain client's request and returns its length.
    pub(crate) fn compose(&mut self, id: Id, request: &[u8]) -> usize {
        self.opener.compose(id, request)
    }

    /// What a plain client may still send.
    pub(crate) fn credit(&self, id: Id) -> usize {
        self.opener.credit(id)
    }

    /// A plain client has taken replies.
    pub(crate) fn consumed(&mut self, id: Id, bytes: usize) -> Result<(), ConsumedTooMuch> {
        self.opener.consumed(id, bytes)
    }

    pub(crate) fn widen(&mut self, id: Id, window: u32) {
        self.opener.widen(id, window);
    }

    /// A plain client sends no more.
    pub(crate) fn finish(&mut self, id: Id) {
        self.opener.finish(id);
    }

    /// The server may drop the replies up to here.
    pub(crate) fn acknowledge(&mut self, id: Id, through: u64) {
        self.opener.acknowledge(id, through);
    }

    /// [`poll_room`](Self::poll_room) names this client when the link has room or credit for it.
    pub(crate) fn want_room(&mut self, id: Id) {
        self.opener.want_room(id);
    }

    /// The next plain client that the link has room or credit for. Ask until `None`.
    #[must_use]
    pub(crate) fn poll_room(&mut self) -> Option<Id> {
        self.opener.poll_room()
    }

    /// A plain client stalls: because of the link, or because its server gives no credit.
    pub(crate) fn count_stall(&mut self, by_link: bool) {
        self.stalls.credit += u64::from(!by_link);
        self.stalls.link += u64::from(by_link);
    }

    pub(crate) fn add_stalls(&mut self, stalls: Stalls) {
        self.stalls.add(stalls);
    }

    /// This client goes on when the link has drained.
    pub(crate) fn starve(&mut self, conn: Conn) {
        self.starved.push(conn);
    }

    /// Whether clients wait for the link to drain, and it has.
    pub(crate) fn may_feed(&self) -> bool {
        !self.is_congested() && !self.starved.is_empty()
    }

    /// The clients that wait for the link to drain.
    pub(crate) fn take_starved(&mut self) -> Vec<Conn> {
        core::mem::take(&mut self.starved)
    }

    /// Those of [`take_starved`](Self::take_starved) that still have to wait come before later ones.
    pub(crate) fn put_back_starved(&mut self, rest: impl Iterator<Item = Conn>) {
        let latest = core::mem::replace(&mut self.starved, rest.collect());
        self.starved.extend(latest);
    }
}

/// How a client learns that a link could not take its connection.
fn refusal_of(error: OpenError) -> Refusal {
    match error {
        OpenError::NotEstablished => Refusal::LinkDown,
        OpenError::Full => Refusal::LinkFull,
        OpenError::Sessions => Refusal::OldServer,
    }
}
