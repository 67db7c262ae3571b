//! A library client: speaks a link of its own, with one virtual connection, whose frames are passed on with the id
//! rewritten. Its credit is end to end.
//!
//! [`requests`] has what it sends, [`replies`] what it is sent.

mod replies;
mod requests;

use core::net::SocketAddr;
use core::time::Duration;

use spillway_batch::{Acceptor, Control, Id};
use spillway_transport::{Time, Unsent};

use crate::clients::backlog::Backlog;
use crate::clients::leaving::Leaving;
use crate::clients::passage::Passage;
use crate::memory::{Memory, Unread};
use crate::status::{ClientKind, ClientStatus};

/// The only id on a library client's link.
const CLIENT_ID: Id = Id(1);

pub(crate) use requests::Received;

/// One library client.
#[derive(Debug)]
pub(crate) struct LibraryClient {
    service: u16,
    peer: SocketAddr,
    since: Time,
    bytes_in: u64,
    bytes_out: u64,
    acceptor: Acceptor,
    /// Bytes of requests that each *connect* may be followed by: what the server's link said when this client's
    /// began.
    credit: u32,
    passage: Option<Passage>,
    /// Sent away to another helper, because this one is overloaded.
    is_sent_away: bool,
    /// Waits for the end of the turn to be sent its batch.
    is_dirty: bool,
    /// Bytes as they came, which wait until the server's link has room. With what is granted, never more than one grant.
    waiting: Backlog,
    /// It sends no more, and this is acted on after what waits.
    has_ended: bool,
    /// What the transport had no room for.
    unsent: Unsent,
    granted: usize,
    /// Waits for the server's link to drain.
    is_starved: bool,
    /// Nothing of it is read while memory is scarce, because it does not read.
    is_paused: bool,
    /// A look at its incomplete record is due.
    is_watched: bool,
    /// Nothing of it is read for a time, because hardly anything that it sends is data.
    rests: bool,
    /// Bytes that the transport has taken for it.
    sent: u64,
    unread: Unread,
    /// Of what waits for it, what is counted in the relay's memory.
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
            passage: None,
            is_sent_away: false,
            is_dirty: false,
            waiting: Backlog::default(),
            has_ended: false,
            unsent: Unsent::default(),
            granted: 0,
            is_starved: false,
            is_paused: false,
            is_watched: false,
            rests: false,
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

    /// Bytes of requests that each *connect* may be followed by.
    pub(crate) fn credit(&self) -> u32 {
        self.credit
    }

    pub(crate) fn is_established(&self) -> bool {
        self.acceptor.is_established()
    }

    pub(crate) fn has_named_key(&self) -> bool {
        self.acceptor.has_named_key()
    }

    /// Has authenticated, without encryption.
    pub(crate) fn is_unencrypted(&self) -> bool {
        self.acceptor.is_established() && !self.acceptor.is_encrypted()
    }

    /// Whether it speaks for its own address.
    pub(crate) fn speaks_for_itself(&self, client: SocketAddr) -> bool {
        client.ip().to_canonical() == self.peer.ip().to_canonical() && client.port() == self.peer.port()
    }

    /// Index of the link to the server that carries its connection.
    pub(crate) fn link(&self) -> Option<usize> {
        self.passage.as_ref().map(|passage| passage.place().link)
    }

    /// Its connection to the server, as it begins.
    pub(crate) fn opened(&mut self, passage: Passage) {
        self.passage = Some(passage);
    }

    /// Its connection to the server has ended on both sides, or with the server's link. The client's own link goes on.
    pub(crate) fn leave_passage(&mut self) {
        self.passage = None;
    }

    /// The client leaves its connection to the server.
    pub(crate) fn take_passage(&mut self) -> Option<Passage> {
        self.passage.take()
    }

    pub(crate) fn is_closed_by_server(&self) -> bool {
        self.passage.as_ref().is_some_and(Passage::is_closed_by_server)
    }

    /// Tells it to go elsewhere, if it has authenticated. False: it has not.
    #[must_use]
    pub(crate) fn drain(&mut self, deadline_ms: u32) -> bool {
        let is_established = self.is_established();
        if is_established {
            self.acceptor.control(Id::LINK, Control::Drain { deadline_ms });
        }
        is_established
    }

    /// Whether it may be sent away to another helper: it has been connected long enough, and was not sent away before.
    pub(crate) fn may_be_sent_away(&self, now: Time, young: Duration) -> bool {
        !self.is_sent_away && self.passage.is_some() && now.since(self.since) >= young
    }

    pub(crate) fn sent_away(&mut self) {
        self.is_sent_away = true;
    }

    /// It takes its last message, then its link ends.
    pub(crate) fn leave_rejected(&mut self, now: Time, memory: &mut Memory) -> Leaving {
        let mut backlog = Backlog::default();
        if let Some(last_words) = self.acceptor.flush() {
            backlog.push(last_words.as_slice(), memory);
        }
        self.over(memory);
        Leaving::library(now, self.service, self.peer, self.since, backlog)
    }

    /// Its link ends.
    pub(crate) fn leave(&mut self, now: Time, memory: &mut Memory) -> Leaving {
        self.over(memory);
        Leaving::library(now, self.service, self.peer, self.since, Backlog::default())
    }

    /// Nothing of it counts any more.
    pub(crate) fn over(&mut self, memory: &mut Memory) {
        memory.changed(self.counted, 0);
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
