//! The virtual connections of a link's clients.

use alloc::vec::Vec;
use core::net::SocketAddr;

use spillway_batch::{CloseReason, ConsumedTooMuch, Control, Id, OpenError};
use spillway_transport::Conn;

use super::Linked;
use crate::counters::Stalls;
use crate::reasons::Refusal;

impl Linked {
    pub(crate) fn client(&self, id: Id) -> Option<Conn> {
        self.members.client(id)
    }

    /// Whether this id still belongs to this client. Ids are reused.
    pub(crate) fn id_belongs_to(&self, id: Id, conn: Conn) -> bool {
        self.members.client(id) == Some(conn)
    }

    /// Whether the library client with this id has left, but the server has not closed yet.
    pub(crate) fn is_orphan(&self, id: Id) -> bool {
        self.members.is_orphan(id)
    }

    pub(crate) fn clients(&self) -> impl Iterator<Item = Conn> + '_ {
        self.members.clients()
    }

    /// Opens a virtual connection for a plain client. `keeps_replies`: whether the server should keep replies.
    pub(crate) fn open_plain(
        &mut self,
        conn: Conn,
        peer: SocketAddr,
        window: u32,
        keeps_replies: bool,
    ) -> Result<Id, Refusal> {
        let id = self.opener.open_with_window(peer, window, keeps_replies).map_err(refusal)?;
        self.members.put(id, conn);
        Ok(id)
    }

    /// Opens a virtual connection for a library client. `opening`: the client's *connect* or *reconnect*.
    pub(crate) fn open_relayed(&mut self, conn: Conn, opening: Control) -> Result<Id, Refusal> {
        let id = self.opener.open_with_message(opening).map_err(refusal)?;
        self.relayed_count += 1;
        self.members.put(id, conn);
        Ok(id)
    }

    /// Closes a plain client's connection at the helper's end.
    pub(crate) fn close_plain(&mut self, id: Id, reason: CloseReason) {
        self.opener.close(id, reason);
        self.members.free(id);
    }

    /// The server has refused a plain client's connection, which needs no *close*.
    pub(crate) fn free_refused_plain(&mut self, id: Id) {
        self.members.free(id);
    }

    /// A library client's connection has ended on both sides, and its id is free.
    pub(crate) fn release_relayed(&mut self, id: Id) {
        self.members.free(id);
        self.opener.release_relayed(id);
        self.relayed_count -= 1;
    }

    /// A library client has left its connection before the server's close.
    pub(crate) fn orphan(&mut self, id: Id) {
        self.members.orphan(id);
    }

    /// Whether the link's version supports sessions. Only then can the server keep replies.
    pub(crate) fn carries_sessions(&self) -> bool {
        self.opener.carries_sessions()
    }

    /// Whether the server acknowledges the requests that it has taken.
    pub(crate) fn acknowledges_requests(&self) -> bool {
        self.opener.acknowledges_requests()
    }

    pub(crate) fn relay_data(&mut self, id: Id, bytes: &[u8], last: bool) {
        self.opener.relay_data(id, bytes, last);
    }

    pub(crate) fn relay_control(&mut self, id: Id, control: Control) {
        self.opener.relay_control(id, control);
    }

    /// Adds a prefix of a plain client's request to the batch, and returns the prefix's length.
    pub(crate) fn compose(&mut self, id: Id, request: &[u8]) -> usize {
        self.opener.compose(id, request)
    }

    /// Bytes that a plain client may still send.
    pub(crate) fn credit(&self, id: Id) -> usize {
        self.opener.credit(id)
    }

    /// The connection of a plain client has taken `bytes` of replies.
    pub(crate) fn consumed(&mut self, id: Id, bytes: usize) -> Result<(), ConsumedTooMuch> {
        self.opener.consumed(id, bytes)
    }

    pub(crate) fn raise_window(&mut self, id: Id, window: u32) {
        self.opener.raise_window(id, window);
    }

    pub(crate) fn finish(&mut self, id: Id) {
        self.opener.finish(id);
    }

    /// Forwards an acknowledgement: the server may drop the kept replies up to this offset.
    pub(crate) fn acknowledge(&mut self, id: Id, through: u64) {
        self.opener.acknowledge(id, through);
    }

    /// Makes [`poll_room`](Self::poll_room) return this client when the link has room or credit for it.
    pub(crate) fn want_room(&mut self, id: Id) {
        self.opener.want_room(id);
    }

    /// The next plain client for which the link has room or credit. Call this until `None`.
    #[must_use]
    pub(crate) fn poll_room(&mut self) -> Option<Id> {
        self.opener.poll_room()
    }

    /// Counts a plain client's stall. `by_link`: the link was congested; otherwise the server gave no credit.
    pub(crate) fn count_stall(&mut self, by_link: bool) {
        self.stalls.credit += u64::from(!by_link);
        self.stalls.link += u64::from(by_link);
    }

    pub(crate) fn add_stalls(&mut self, stalls: Stalls) {
        self.stalls.add(stalls);
    }

    /// Adds a client that waits until the link is no longer congested.
    pub(crate) fn add_waiter(&mut self, conn: Conn) {
        self.waiters.push(conn);
    }

    /// Whether the link is not congested any more and clients have waited for that.
    pub(crate) fn can_resume_waiters(&self) -> bool {
        !self.is_congested() && !self.waiters.is_empty()
    }

    pub(crate) fn take_waiters(&mut self) -> Vec<Conn> {
        core::mem::take(&mut self.waiters)
    }

    /// Puts clients of [`take_waiters`](Self::take_waiters) back, before those that were added meanwhile.
    pub(crate) fn put_back_waiters(&mut self, rest: impl Iterator<Item = Conn>) {
        let latest = core::mem::replace(&mut self.waiters, rest.collect());
        self.waiters.extend(latest);
    }
}

fn refusal(error: OpenError) -> Refusal {
    match error {
        OpenError::NotEstablished => Refusal::LinkDown,
        OpenError::Full => Refusal::LinkFull,
        OpenError::Sessions => Refusal::OldServer,
    }
}
