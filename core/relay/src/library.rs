//! A library client: speaks a link of its own, with one virtual connection, whose frames are passed on with the id
//! rewritten. Its credit is end to end.

use core::net::SocketAddr;

use spillway_batch::{Acceptor, Id, LinkError};
use spillway_transport::{Chunk, Conn, Time, Transport};

use crate::backlog::Backlog;
use crate::memory::{Memory, Unread};
use crate::upstream::Linked;

/// The only id on a library client's link.
pub(crate) const CLIENT_ID: Id = Id(1);

/// One library client.
#[derive(Debug)]
pub(crate) struct LibraryClient {
    pub(crate) service: u16,
    pub(crate) peer: SocketAddr,
    pub(crate) since: Time,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) acceptor: Acceptor,
    /// Bytes of requests that each *connect* may be followed by: what the server's link said when this client's
    /// began.
    pub(crate) credit: u32,
    pub(crate) passage: Option<Passage>,
    /// It was told to go to another helper, because this one has too much to do.
    pub(crate) sent_away: bool,
    /// Waits for the end of the turn to be sent its batch.
    pub(crate) dirty: bool,
    /// Bytes as they came, which wait until the server's link has room. With what is granted, never more than one grant.
    pub(crate) waiting: Backlog,
    /// It sends no more, and this is acted on after what waits.
    pub(crate) has_ended: bool,
    /// What the transport had no room for.
    unsent: Option<Chunk>,
    granted: usize,
    /// Waits for the server's link to drain.
    starved: bool,
    /// Nothing of it is read while memory is scarce, because it does not read.
    paused: bool,
    /// A look at its incomplete record is due.
    pub(crate) watched: bool,
    /// Nothing of it is read for a time, because hardly anything that it sends is data.
    pub(crate) rests: bool,
    /// Bytes that the transport has taken for it.
    sent: u64,
    unread: Unread,
    /// Of what waits for it, what is counted in the relay's memory.
    counted: usize,
}

/// A virtual connection between a client's link and a server's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage {
    /// Index of the server's link.
    pub(crate) upstream: usize,
    /// Its id there.
    pub(crate) id: Id,
    /// It carries a session, which may go on elsewhere.
    pub(crate) of_session: bool,
    pub(crate) finished_by_client: bool,
    pub(crate) closed_by_client: bool,
    pub(crate) closed_by_server: bool,
    /// Bytes of requests so far, and up to where the server's credit goes. Sessions keep to their own.
    sent: u64,
    credit: Option<u64>,
}

/// What to do with a piece of a request.
pub(crate) enum Request {
    Forward,
    /// Its connection has ended.
    PassOver,
    /// It is more than the server has allowed.
    OverCredit,
}

impl Passage {
    /// `credit`: bytes of requests that the server allows at first; none for a session.
    pub(crate) fn new(upstream: usize, id: Id, credit: Option<u32>) -> Passage {
        Passage {
            upstream,
            id,
            of_session: credit.is_none(),
            finished_by_client: false,
            closed_by_client: false,
            closed_by_server: false,
            sent: 0,
            credit: credit.map(u64::from),
        }
    }

    pub(crate) fn request(&mut self, bytes: usize) -> Request {
        if self.closed_by_client || self.closed_by_server {
            return Request::PassOver;
        }
        self.sent = self.sent.saturating_add(bytes as u64);
        if self.credit.is_some_and(|credit| self.sent > credit) {
            Request::OverCredit
        } else {
            Request::Forward
        }
    }

    /// The server allows requests up to this offset.
    pub(crate) fn raise_credit(&mut self, limit: u64) {
        if let Some(credit) = &mut self.credit {
            *credit = limit.max(*credit);
        }
    }
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
            sent_away: false,
            dirty: false,
            waiting: Backlog::default(),
            has_ended: false,
            unsent: None,
            granted: 0,
            starved: false,
            paused: false,
            watched: false,
            rests: false,
            sent: 0,
            unread: Unread::new(now),
            counted: 0,
        }
    }

    /// Whether it speaks for its own address.
    pub(crate) fn speaks_for_itself(&self, client: SocketAddr) -> bool {
        client.ip().to_canonical() == self.peer.ip().to_canonical() && client.port() == self.peer.port()
    }

    /// Grants are for the client's link as a whole: what is under way when the server's link stalls is in them.
    pub(crate) fn received(&mut self, bytes: usize) {
        self.granted = self.granted.saturating_sub(bytes);
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
            memory.pauses += u64::from(!core::mem::replace(&mut self.paused, true));
            return;
        }
        self.paused = false;
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
    pub(crate) fn starve(&mut self, conn: Conn, linked: &mut Linked) {
        if !core::mem::replace(&mut self.starved, true) {
            linked.starved.push(conn);
        }
    }

    pub(crate) fn link_drained(&mut self) {
        self.starved = false;
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Bytes that wait for it here.
    pub(crate) fn pending(&self) -> usize {
        self.acceptor.pending() + self.unsent.as_ref().map_or(0, Chunk::len)
    }

    /// Bytes that wait here, in both directions.
    pub(crate) fn buffered(&self) -> usize {
        self.pending() + self.waiting.len()
    }

    /// Bytes that have come of an incomplete record. Only its rest, or the end of the link, frees them.
    pub(crate) fn incomplete(&self) -> usize {
        self.acceptor.held_incomplete()
    }

    /// When the first bytes arrived of a record that is incomplete.
    pub(crate) fn incomplete_since(&self) -> Option<Time> {
        self.acceptor.incomplete_since()
    }

    /// Fails when the rest of a record does not come although it would be read.
    pub(crate) fn record_timeout(&mut self, now: Time) -> Result<(), LinkError> {
        self.acceptor.handle_record_timeout(now, self.granted > 0)
    }

    /// Bytes of memory that they take.
    pub(crate) fn held(&self) -> usize {
        self.held_for_it() + self.waiting.capacity()
    }

    fn held_for_it(&self) -> usize {
        self.acceptor.held() + self.unsent.as_ref().map_or(0, Chunk::capacity)
    }

    /// Since when it has not read.
    pub(crate) fn note_unread<T: Transport>(&mut self, now: Time, conn: Conn, out: &T) -> Unread {
        let pending = self.pending();
        self.unread.note(now, self.sent + pending as u64, pending + out.queued(conn));
        self.unread
    }

    /// Sends what waits, as far as there is room; the transport tells when there is more.
    pub(crate) fn transmit<T: Transport>(&mut self, now: Time, conn: Conn, memory: &mut Memory, out: &mut T) {
        self.dirty = false;
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
        self.note_unread(now, conn, out);
        self.count(memory);
    }

    /// Brings the relay's memory up to date. What is kept for reuse while nothing waits is next to nothing.
    pub(crate) fn count(&mut self, memory: &mut Memory) {
        let held = if self.pending() == 0 { self.acceptor.held_incomplete() } else { self.held_for_it() };
        memory.changed(self.counted, held);
        self.counted = held;
    }

    /// It is over: nothing of it counts any more.
    pub(crate) fn over(&mut self, memory: &mut Memory) {
        memory.changed(self.counted, 0);
        self.counted = 0;
        self.waiting.clear(memory);
    }
}
