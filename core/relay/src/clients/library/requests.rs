//! What a library client sends: how much of it is read, and what becomes of it.

use alloc::vec::Vec;

use spillway_auth::KeyRing;
use spillway_batch::{AcceptorEvent, CloseReason, Control, Id, LinkError, Scratch};
use spillway_transport::{Conn, Time, Transport};

use super::{CLIENT_ID, LibraryClient};
use crate::clients::passage::{Place, Request, Step};
use crate::links::Linked;
use crate::memory::Memory;

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
    pub(crate) fn take_waiting(&mut self, memory: &mut Memory) -> Vec<u8> {
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
        if memory.is_scarce() && !self.unsent.is_empty() {
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
        #[expect(clippy::cast_possible_truncation, reason = "at most CLIENT_GRANT_BYTES")]
        out.grant(conn, more as u32);
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
