//! A library client: speaks a link of its own, with one virtual connection, whose frames are passed on with the id
//! rewritten. Its credit is end to end.

use core::net::SocketAddr;
use core::time::Duration;

use spillway_auth::KeyRing;
use spillway_batch::{Acceptor, AcceptorEvent, CloseReason, Control, Id, LinkError, Scratch};
use spillway_transport::{Chunk, Conn, Time, Transport};

use crate::clients::backlog::Backlog;
use crate::clients::leaving::Leaving;
use crate::clients::passage::{Passage, Place, Request, Step};
use crate::links::Linked;
use crate::memory::{Held, Memory, Unread};
use crate::status::{ClientKind, ClientStatus};

/// The only id on a library client's link.
const CLIENT_ID: Id = Id(1);

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
    /// It was told to go to another helper, because this one has too much to do.
    is_sent_away: bool,
    /// Waits for the end of the turn to be sent its batch.
    is_dirty: bool,
    /// Bytes as they came, which wait until the server's link has room. With what is granted, never more than one grant.
    waiting: Backlog,
    /// It sends no more, and this is acted on after what waits.
    has_ended: bool,
    /// What the transport had no room for.
    unsent: Option<Chunk>,
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

/// What becomes of bytes that have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// They are to be taken apart now.
    Now,
    /// They wait until the server's link has drained.
    WhenDrained,
    /// They wait for the end of the turn.
    AtEndOfTurn,
}

/// The client's link and connection as they begin and end.
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
            unsent: None,
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

    /// Its connection to the server has ended; the client's own link goes on.
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

    /// Whether it may be told to go to another helper: it has been here for a while, and has not been told before.
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

/// What the client sends.
impl LibraryClient {
    /// Bytes have come. While the server's batch is as large as it may be, they wait here. Bytes that come later wait behind
    /// them, also when the client's connection to the server has ended meanwhile.
    pub(crate) fn receive(
        &mut self,
        conn: Conn,
        bytes: &[u8],
        linked: Option<&mut Linked>,
        memory: &mut Memory,
    ) -> Received {
        // Grants are for the client's link as a whole: what is under way when the server's link stalls is in them.
        self.granted = self.granted.saturating_sub(bytes.len());
        if self.waiting.is_empty() && !linked.as_ref().is_some_and(|linked| linked.is_full()) {
            return Received::Now;
        }
        self.waiting.push(bytes, memory);
        match linked {
            Some(linked) => {
                self.starve(conn, linked);
                Received::WhenDrained
            }
            None => Received::AtEndOfTurn,
        }
    }

    /// Whether bytes wait, and no server's link has to drain for them.
    pub(crate) fn may_go_on(&self) -> bool {
        self.passage.is_none() && !self.waiting.is_empty()
    }

    /// What has waited, to be taken apart now.
    pub(crate) fn take_waiting(&mut self, memory: &mut Memory) -> alloc::vec::Vec<u8> {
        self.is_starved = false;
        self.waiting.take(memory)
    }

    /// It sends no more. False: this is acted on after what waits.
    #[must_use]
    pub(crate) fn ends(&mut self) -> bool {
        self.has_ended |= !self.waiting.is_empty();
        self.waiting.is_empty()
    }

    /// Whether it sends no more, which was not acted on because something waited.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Opens the records in what it has sent. `ring`: none if the service has no client keys.
    pub(crate) fn unseal<'a>(
        &mut self,
        now: Time,
        ring: Option<&KeyRing>,
        bytes: &'a [u8],
        scratch: &'a mut Scratch,
    ) -> &'a [u8] {
        if let Some(ring) = ring {
            return self.acceptor.unseal(now, ring, bytes, scratch);
        }
        // Settings may have changed since it came: who is not on loopback is not let in without a key.
        let trusted = !self.is_established() && self.peer.ip().is_loopback();
        let ring = if trusted { KeyRing::loopback_only() } else { KeyRing::new() };
        self.acceptor.unseal(now, &ring, bytes, scratch)
    }

    /// The next event in what it has sent.
    pub(crate) fn decompose<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<AcceptorEvent<'a>>, LinkError> {
        self.acceptor.decompose(input)
    }

    /// A piece of a request. What comes after the end of its connection is passed over.
    pub(crate) fn request(&mut self, id: Id, bytes: &[u8]) -> Request {
        self.bytes_in += bytes.len() as u64;
        let passage = self.passage.as_mut().filter(|_| id == CLIENT_ID);
        let request = passage.map_or(Request::PassOver, |passage| passage.request(bytes.len()));
        if request == Request::PassOver {
            self.acceptor.passed_over(bytes.len());
        }
        request
    }

    /// Whether it may open a connection with this id now.
    pub(crate) fn may_open(&self, id: Id) -> bool {
        id == CLIENT_ID && self.passage.is_none()
    }

    /// A control message that opens nothing.
    pub(crate) fn client_says(&mut self, id: Id, control: &Control) -> Step {
        let passage = self.passage.as_mut().filter(|_| id == CLIENT_ID);
        passage.map_or(Step::PassOver, |passage| passage.client_says(control))
    }

    /// It has sent more than the server allows: it is told, and nothing more of it passes. Returns where the server is to be
    /// told.
    pub(crate) fn break_passage(&mut self) -> Option<Place> {
        let passage = self.passage.take()?;
        self.acceptor.control(CLIENT_ID, Control::Close(CloseReason::OverCredit));
        Some(passage.place())
    }

    /// Grants more once half is used up, unless the server's link is stalled, or the client does not read answers or sends
    /// hardly any data, or memory is scarce and it does not read.
    pub(crate) fn grant<T: Transport>(
        &mut self,
        conn: Conn,
        linked: Option<&mut Linked>,
        memory: &mut Memory,
        out: &mut T,
    ) {
        if memory.is_scarce() && self.unsent.is_some() {
            if !core::mem::replace(&mut self.is_paused, true) {
                memory.count_pause();
            }
            return;
        }
        self.is_paused = false;
        let most = memory.grant_bytes();
        if self.rests || self.granted * 2 > most || !self.waiting.is_empty() || !self.acceptor.may_read() {
            return;
        }
        if let Some(linked) = linked.filter(|linked| linked.is_congested()) {
            return self.starve(conn, linked);
        }
        let more = most - self.granted;
        self.granted += more;
        out.grant(conn, more as u32); // at most CLIENT_GRANT_BYTES
    }

    /// It goes on when the link has drained.
    fn starve(&mut self, conn: Conn, linked: &mut Linked) {
        if !core::mem::replace(&mut self.is_starved, true) {
            linked.starve(conn);
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Whether a timer for its incomplete record is to be started.
    #[must_use]
    pub(crate) fn starts_watch(&mut self) -> bool {
        self.acceptor.incomplete_since().is_some() && !core::mem::replace(&mut self.is_watched, true)
    }

    /// A timer for its incomplete record runs.
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Fails when the rest of a record does not come although it would be read.
    pub(crate) fn record_timeout(&mut self, now: Time) -> Result<(), LinkError> {
        self.is_watched = false;
        self.acceptor.handle_record_timeout(now, self.granted > 0)
    }

    /// Whether it sends hardly anything but control messages, so that it is not read for a time from now on: a timer is to be
    /// started.
    #[must_use]
    pub(crate) fn starts_rest(&mut self, now: Time) -> bool {
        !self.rests && self.rests_on(now)
    }

    /// Whether it is still not read at the end of a timer.
    #[must_use]
    pub(crate) fn rests_on(&mut self, now: Time) -> bool {
        self.rests = self.acceptor.rests_until(now).is_some();
        self.rests
    }

    pub(crate) fn is_resting(&self) -> bool {
        self.rests
    }
}

/// What waits for the client.
impl LibraryClient {
    /// Data of the server. False: its connection takes none any more.
    #[must_use]
    pub(crate) fn reply(&mut self, bytes: &[u8], memory: &mut Memory) -> bool {
        if !self.passage.as_ref().is_some_and(Passage::takes_replies) {
            return false;
        }
        self.bytes_out += bytes.len() as u64;
        self.acceptor.data(CLIENT_ID, bytes);
        self.count(memory);
        true
    }

    /// A control message of the server.
    pub(crate) fn server_says(&mut self, control: Control) -> Step {
        let step = self.passage.as_mut().map_or(Step::PassOver, |passage| passage.server_says(&control));
        if step != Step::PassOver {
            self.acceptor.control(CLIENT_ID, control);
        }
        step
    }

    /// A control message of ours about its connection.
    pub(crate) fn say(&mut self, control: Control) {
        self.acceptor.control(CLIENT_ID, control);
    }

    /// Bytes that wait for it here.
    pub(crate) fn pending(&self) -> usize {
        self.acceptor.pending() + self.unsent.as_ref().map_or(0, Chunk::len)
    }

    /// It has something to be sent at the end of the turn. False: that was known.
    #[must_use]
    pub(crate) fn set_dirty(&mut self, memory: &mut Memory) -> bool {
        self.count(memory);
        !core::mem::replace(&mut self.is_dirty, true)
    }

    /// Sends what waits, as far as there is room; the transport's `Room` says when there is more.
    pub(crate) fn transmit<T: Transport>(&mut self, now: Time, conn: Conn, memory: &mut Memory, out: &mut T) {
        self.is_dirty = false;
        if self.unsent.is_none() {
            self.unsent = self.acceptor.flush();
        }
        while let Some(mut chunk) = self.unsent.take() {
            let taken = out.send(conn, chunk.as_slice());
            chunk.advance(taken);
            self.sent += taken as u64;
            if !chunk.is_empty() {
                self.unsent = Some(chunk);
                break;
            }
            self.acceptor.recycle(chunk);
            self.unsent = self.acceptor.flush();
        }
        self.note_unread(now, out.queued(conn));
        self.count(memory);
    }

    fn note_unread(&mut self, now: Time, queued: usize) {
        let pending = self.pending();
        self.unread.note(now, self.sent + pending as u64, pending + queued);
    }

    /// What it holds. `queued`: bytes in the transport. Bytes of an incomplete record count, because only its rest, or the end
    /// of the link, frees them.
    pub(crate) fn held(&mut self, now: Time, queued: usize) -> Held {
        self.note_unread(now, queued);
        let withheld = self.acceptor.incomplete_since().map_or(Duration::ZERO, |since| now.since(since));
        Held {
            waits: self.pending() + self.waiting.len() + self.acceptor.held_incomplete(),
            bytes: self.held_for_it() + self.waiting.capacity(),
            age: self.unread.age(now).max(withheld),
        }
    }

    fn held_for_it(&self) -> usize {
        self.acceptor.held() + self.unsent.as_ref().map_or(0, Chunk::capacity)
    }

    /// Brings the relay's memory up to date. What is kept for reuse while nothing waits is next to nothing.
    pub(crate) fn count(&mut self, memory: &mut Memory) {
        let held = if self.pending() == 0 { self.acceptor.held_incomplete() } else { self.held_for_it() };
        memory.changed(self.counted, held);
        self.counted = held;
    }
}
