//! Library clients. A library client has a link of its own with one virtual connection, whose frames are relayed with
//! the id rewritten. Credit is forwarded end to end. [`requests`]: bytes from the client. [`replies`]: bytes to it.

mod replies;
mod requests;

use core::net::SocketAddr;
use core::time::Duration;

use spillway_batch::{Acceptor, Control, Id};
use spillway_transport::{Time, Unsent};

use crate::clients::backlog::Backlog;
use crate::clients::lingering::Lingering;
use crate::clients::relayed::RelayedConn;
use crate::memory::{Memory, Unread};
use crate::status::{ClientKind, ClientStatus};

/// The only id on a library client's link.
const CLIENT_ID: Id = Id(1);

pub(crate) use requests::HandleWhen;

#[derive(Debug)]
pub(crate) struct LibraryClient {
    service: u16,
    peer: SocketAddr,
    since: Time,
    bytes_in: u64,
    bytes_out: u64,
    acceptor: Acceptor,
    /// Initial credit of each connection in bytes, as announced when this client's link was opened.
    credit: u32,
    relayed: Option<RelayedConn>,
    /// The client was sent *drain* because this helper is overloaded.
    is_shed: bool,
    /// Output is scheduled for the end of the turn.
    is_dirty: bool,
    /// Received bytes that wait until the server's link has room. Together with `granted`, they are at most
    /// one grant.
    waiting: Backlog,
    /// The client has finished its stream; the end is handled after the bytes in `waiting`.
    has_stored_end: bool,
    /// Output that the transport did not take.
    unsent: Unsent,
    /// Bytes that were granted and not received.
    granted: usize,
    /// The client is in the server link's list of waiting clients.
    waits_for_link: bool,
    /// The client is not read, because memory is scarce and it does not read its replies.
    is_paused: bool,
    record_timer_runs: bool,
    /// The client is not read for a time, because it has sent too many bytes other than data.
    is_throttled: bool,
    /// Bytes that the transport has taken.
    sent: u64,
    unread: Unread,
    /// Bytes of output and of an incomplete record that are counted in [`Memory`].
    counted: usize,
}

impl LibraryClient {
    pub(crate) fn new(
        now: Time,
        service: u16,
        peer: SocketAddr,
        acceptor: Acceptor,
        credit: u32,
    ) -> LibraryClient {
        LibraryClient {
            service,
            peer,
            since: now,
            bytes_in: 0,
            bytes_out: 0,
            acceptor,
            credit,
            relayed: None,
            is_shed: false,
            is_dirty: false,
            waiting: Backlog::default(),
            has_stored_end: false,
            unsent: Unsent::default(),
            granted: 0,
            waits_for_link: false,
            is_paused: false,
            record_timer_runs: false,
            is_throttled: false,
            sent: 0,
            unread: Unread::new(now),
            counted: 0,
        }
    }

    pub(crate) fn service(&self) -> u16 {
        self.service
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn credit(&self) -> u32 {
        self.credit
    }

    pub(crate) fn is_established(&self) -> bool {
        self.acceptor.is_established()
    }

    pub(crate) fn has_named_key(&self) -> bool {
        self.acceptor.has_named_key()
    }

    /// Whether the client has authenticated without encryption.
    pub(crate) fn is_unencrypted(&self) -> bool {
        self.acceptor.is_established() && !self.acceptor.is_encrypted()
    }

    pub(crate) fn is_own_address(&self, client: SocketAddr) -> bool {
        client.ip().to_canonical() == self.peer.ip().to_canonical() && client.port() == self.peer.port()
    }

    /// Index of the server's link that carries the client's connection.
    pub(crate) fn link(&self) -> Option<usize> {
        self.relayed.as_ref().map(|relayed| relayed.virtual_id().link)
    }

    pub(crate) fn set_relayed(&mut self, relayed: RelayedConn) {
        self.relayed = Some(relayed);
    }

    /// The connection to the server has ended on both sides, or with the server's link. The client's link stays open.
    pub(crate) fn remove_relayed(&mut self) {
        self.relayed = None;
    }

    pub(crate) fn take_relayed(&mut self) -> Option<RelayedConn> {
        self.relayed.take()
    }

    pub(crate) fn is_closed_by_server(&self) -> bool {
        self.relayed.as_ref().is_some_and(RelayedConn::is_closed_by_server)
    }

    /// Sends *drain* if the client has authenticated. Returns whether *drain* was sent.
    #[must_use]
    pub(crate) fn drain(&mut self, deadline_ms: u32) -> bool {
        let is_established = self.is_established();
        if is_established {
            self.acceptor.control(Id::LINK, Control::Drain { deadline_ms });
        }
        is_established
    }

    /// Whether the client may be shed: it has a virtual connection, has been connected for `age_min`, and was not shed
    /// before.
    pub(crate) fn can_be_shed(&self, now: Time, age_min: Duration) -> bool {
        !self.is_shed && self.relayed.is_some() && now.since(self.since) >= age_min
    }

    pub(crate) fn set_shed(&mut self) {
        self.is_shed = true;
    }

    /// The client's authentication has failed. The returned client sends the rejection and lingers.
    pub(crate) fn linger_rejected(&mut self, now: Time, memory: &mut Memory) -> Lingering {
        let mut backlog = Backlog::default();
        if let Some(rejection) = self.acceptor.flush() {
            backlog.push(rejection.as_slice(), memory);
        }
        self.release_memory(memory);
        Lingering::library(now, self.service, self.peer, self.since, backlog)
    }

    /// The client has finished its link. The returned client lingers until the connection ends.
    pub(crate) fn linger(&mut self, now: Time, memory: &mut Memory) -> Lingering {
        self.release_memory(memory);
        Lingering::library(now, self.service, self.peer, self.since, Backlog::default())
    }

    pub(crate) fn release_memory(&mut self, memory: &mut Memory) {
        memory.resize_client(self.counted, 0);
        self.counted = 0;
        self.waiting.clear(memory);
    }

    pub(crate) fn status(&self) -> ClientStatus {
        ClientStatus {
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            buffered: self.pending() + self.waiting.len(),
            ..ClientStatus::new(self.peer, ClientKind::Library, self.since)
        }
    }
}
