//! One client with a session: its application, its clock, and the carrier that it has now.

use std::time::Duration;

use spillway_batch::{CloseReason, Control, Id, OpenerEvent, OpenerLink};
use spillway_session::{
    Carrier, ClientEvent, ClientSession, Doubt, OnOpenerLink, Patience, StreamEvent, Vigil,
};
use spillway_transport::{Chunk, Conn, Time, Transport};
use spillway_wire::session::{Resumed, SessionId};

use super::books::Shared;
use super::canary::Canary;
use super::check::Check;
use super::copies;
use crate::clock::Clock;
use crate::rng::Rng;

/// Bytes that may wait on a client's link.
const PENDING_BYTES_MAX: usize = 64 * 1024;
/// When the weather is calm nobody is impatient without reason: longer than any stall.
const PATIENCE_CALM: Duration = Duration::from_secs(5);

/// One client.
pub(crate) struct Client {
    pub(crate) session: ClientSession,
    pub(crate) id: SessionId,
    pub(crate) way: Option<Way>,
    pub(crate) clock: Clock,
    pub(crate) vigil: Vigil,
    /// How long a carrier may take until the server has answered.
    pub(crate) attach_within: Duration,
    /// When it looks for another carrier, or looks after this one; by the world's time.
    pub(crate) wake_at: Time,
    pub(crate) to_write: u64,
    pub(crate) written: u64,
    /// It was told of room since what it wrote was taken in part only.
    pub(crate) may_write: bool,
    pub(crate) has_finished: bool,
    /// Resets its session when it has written this much.
    pub(crate) leaves_at: Option<u64>,
    pub(crate) unread: u64,
    /// Closes in order as soon as it has written all.
    pub(crate) is_hasty: bool,
    /// Reads little at a time, from its session and from its socket.
    pub(crate) is_slow: bool,
    pub(crate) saw_end: bool,
    pub(crate) has_closed: bool,
}

/// A carrier of the client's own making.
pub(crate) struct Way {
    pub(crate) conn: Conn,
    pub(crate) link: Option<OpenerLink>,
    pub(crate) unsent: Option<Chunk>,
    pub(crate) id: Option<Id>,
    /// The server must have answered until then, by the client's clock.
    pub(crate) deadline: Time,
    /// Bytes received that the socket has not been told of.
    pub(crate) ungranted: u32,
}

/// What is common to the clients of a world, while one of them has its turn.
pub(crate) struct Around<'a> {
    pub(crate) rng: &'a mut Rng,
    pub(crate) books: &'a Shared,
    /// Somebody on the way keeps copies, and says them again.
    pub(crate) copies: Option<&'a copies::Shared>,
    pub(crate) canary: Option<Canary>,
}

/// What passes on a client's carrier is copied.
struct Copied<'a> {
    carrier: OnOpenerLink<'a>,
    copies: Option<&'a copies::Shared>,
    session: SessionId,
}

impl Carrier for Copied<'_> {
    fn data(&mut self, bytes: &[u8]) -> usize {
        self.carrier.data(bytes)
    }

    fn control(&mut self, control: Control) {
        if let Some(copies) = self.copies {
            copies.borrow_mut().of_client(self.session, control);
        }
        self.carrier.control(control);
    }
}

impl Client {
    /// Its own time.
    pub(crate) fn time(&self, now: Time) -> Time {
        self.clock.read(now)
    }

    /// It is no longer slow or impatient without reason, and writes little more.
    pub(crate) fn calm_down(&mut self, now: Time) {
        let patience = Patience { floor: PATIENCE_CALM, ceiling: PATIENCE_CALM, idle: PATIENCE_CALM };
        self.vigil = Vigil::new(patience, self.time(now));
        self.attach_within = PATIENCE_CALM;
        self.is_slow = false;
        self.wake_at = now;
        self.to_write = self.to_write.min(self.written + 1_000);
    }

    /// Takes what the link brings. Whether the client stays on this carrier.
    pub(crate) fn takes(
        &mut self,
        here: Time,
        link: &mut OpenerLink,
        event: OpenerEvent<'_>,
        around: &mut Around<'_>,
    ) -> bool {
        match event {
            OpenerEvent::RelayedData { bytes, .. } => match self.session.handle_data(here, bytes.len()) {
                Ok(true) => {
                    self.unread += bytes.len() as u64;
                    let mut books = around.books.borrow_mut();
                    books.client_reads(self.id, bytes);
                    books.client_holds(self.id, self.unread);
                    true
                }
                Ok(false) => true,
                Err(event) => {
                    around.books.borrow_mut().violation(Check::Rules, format!("the server: {event:?}"));
                    false
                }
            },
            OpenerEvent::RelayedControl { control, .. } => self.hears(here, link, control, around),
            OpenerEvent::Drain { .. } => false,
            other => {
                around.books.borrow_mut().violation(Check::Rules, format!("a client hears {other:?}"));
                false
            }
        }
    }

    fn hears(
        &mut self,
        here: Time,
        link: &mut OpenerLink,
        control: Control,
        around: &mut Around<'_>,
    ) -> bool {
        if let Some(copies) = around.copies {
            if let Control::Resumed(right) = &control
                && around.rng.chance(1, 8)
                && let Some(copy) = copies.borrow().answer(self.id, around.rng)
                && copy != *right
            {
                return self.hears_copy(here, copy, around);
            }
            if around.rng.chance(1, 16) {
                self.hears_again(here, link, copies, around);
            }
            copies.borrow_mut().of_server(self.id, control);
        }
        let attached = self.session.is_attached();
        match self.session.handle_control(here, &control) {
            Ok(event) => {
                let mut books = around.books.borrow_mut();
                match &control {
                    Control::Acknowledge(acknowledge) if attached => {
                        books.client_hears_acknowledged(self.id, acknowledge.received);
                    }
                    Control::Resumed(answer) => books.client_attaches(self.id, answer),
                    _ => {}
                }
                drop(books);
                event.is_none_or(|event| self.happens(here, event, around))
            }
            Err(error) => {
                around.books.borrow_mut().violation(Check::Rules, format!("a client hears: {error}"));
                false
            }
        }
    }

    /// Somebody answers the first words before the server does, with what was said on another carrier.
    fn hears_copy(&mut self, here: Time, copy: Resumed, around: &mut Around<'_>) -> bool {
        let believed = self.session.handle_control(here, &Control::Resumed(copy)).is_ok();
        let mut books = around.books.borrow_mut();
        if believed {
            books.client_attaches(self.id, &copy);
            return true;
        }
        books.copies_refused += 1;
        false
    }

    /// Somebody says again, both ways, what was said on another carrier.
    fn hears_again(
        &mut self,
        here: Time,
        link: &mut OpenerLink,
        copies: &copies::Shared,
        around: &mut Around<'_>,
    ) {
        let Some(id) = self.way.as_ref().and_then(|way| way.id).filter(|_| self.session.is_attached()) else {
            return;
        };
        let copies = copies.borrow();
        if let Some(copy) = copies.said_by_server(self.id, around.rng)
            && !matches!(self.session.handle_control(here, &copy), Ok(None))
        {
            around.books.borrow_mut().violation(Check::Rules, format!("a copy of {copy:?} does harm"));
        }
        if let Some(copy) = copies.said_by_client(self.id, around.rng) {
            link.relay_control(id, copy);
        }
    }

    /// Whether the client stays on this carrier.
    fn happens(&mut self, here: Time, event: ClientEvent, around: &mut Around<'_>) -> bool {
        let mut books = around.books.borrow_mut();
        match event {
            ClientEvent::Attached { room } => {
                self.vigil.restart(here);
                self.may_write |= room && around.canary != Some(Canary::ForgetRoom);
                true
            }
            ClientEvent::Accepted => true,
            ClientEvent::Stream(StreamEvent::Room) => {
                self.may_write = true;
                true
            }
            ClientEvent::Refused(_) | ClientEvent::Drain { .. } => false,
            ClientEvent::Gone { acknowledged } => {
                let further = u64::from(around.canary == Some(Canary::GoneFurther));
                books.client_told_gone(self.id, acknowledged + further);
                true
            }
            ClientEvent::Stream(StreamEvent::Finished) => {
                self.saw_end = true;
                books.client_sees_end(self.id);
                true
            }
            ClientEvent::Stream(StreamEvent::Closed(reason)) => {
                match reason {
                    CloseReason::Normal => books.client_sees_end(self.id),
                    CloseReason::Reset => {}
                    other => books.client_sees_break(self.id, other),
                }
                if !self.has_closed {
                    self.has_closed = true;
                    books.client_closes(self.id, reason != CloseReason::Normal);
                    self.session.close(CloseReason::Normal);
                }
                true
            }
        }
    }

    /// Writes and reads some, and ends what is to be ended.
    pub(crate) fn work(&mut self, around: &mut Around<'_>) {
        if self.has_closed {
            return;
        }
        let (rng, mut books) = (&mut *around.rng, around.books.borrow_mut());
        let most = (self.to_write - self.written.min(self.to_write)).min(rng.scale(1, 32 * 1024));
        // One more than there is room for, to be told when there is more.
        let most = most.min(self.session.room() as u64 + 1);
        if self.may_write && most > 0 {
            let bytes = books.request(self.id, most);
            let taken = self.session.write(&bytes) as u64;
            self.may_write = taken == most;
            self.written += taken;
            books.wrote(self.id, taken);
        }
        if self.written >= self.to_write && !self.has_finished {
            self.has_finished = true;
            books.client_finishes(self.id);
            self.session.finish();
        }
        let part = if self.is_slow { self.unread.min(rng.scale(1, 2_000)) } else { self.unread };
        self.unread -= part;
        let outcome = self.session.consumed(part as usize);
        debug_assert_eq!(outcome, Ok(()), "at most what is unread");
        let resets = self.leaves_at.is_some_and(|at| self.written >= at);
        let is_done = self.has_finished && (self.is_hasty || (self.saw_end && self.unread == 0));
        if resets || is_done {
            self.has_closed = true;
            books.client_closes(self.id, resets);
            self.session.close(if resets { CloseReason::Reset } else { CloseReason::Normal });
        }
    }

    /// Lets the socket have what was received, as far as the client likes.
    pub(crate) fn grant<T: Transport>(&mut self, rng: &mut Rng, out: &mut T) {
        let is_slow = self.is_slow;
        if let Some(way) = &mut self.way
            && way.ungranted > 0
        {
            let part = if is_slow {
                u64::from(way.ungranted).min(rng.scale(100, 10_000))
            } else {
                way.ungranted.into()
            };
            way.ungranted -= part as u32; // at most as much
            out.grant(way.conn, part as u32);
        }
    }

    /// Whether there is something to do soon.
    pub(crate) fn has_work(&self) -> bool {
        self.way.as_ref().is_some_and(|way| way.ungranted > 0)
            || (!self.has_closed && (self.unread > 0 || (self.written < self.to_write && self.may_write)))
    }

    /// Whether it has had enough of its carrier, which may first be asked for a sign of life.
    pub(crate) fn has_doubts(&mut self, here: Time) -> bool {
        let Some(way) = &mut self.way else { return false };
        if !self.session.is_attached() {
            return way.deadline <= here;
        }
        match (self.vigil.poll(here), &mut way.link, way.id) {
            (Some(Doubt::Leave), ..) => true,
            (Some(Doubt::Ask), Some(link), Some(id)) => {
                self.session.ask(&mut OnOpenerLink { link, id, pending_bytes_max: PENDING_BYTES_MAX });
                false
            }
            _ => false,
        }
    }

    /// When to look again if nothing happens, by its clock.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let way = self.way.as_ref()?;
        if !self.session.is_attached() {
            return Some(way.deadline);
        }
        let owed = self.session.poll_timeout();
        Some(owed.map_or(self.vigil.poll_timeout(), |owed| owed.min(self.vigil.poll_timeout())))
    }

    /// Sends what there is.
    pub(crate) fn transmit<T: Transport>(
        &mut self,
        here: Time,
        copies: Option<&copies::Shared>,
        out: &mut T,
    ) {
        let Some(way) = &mut self.way else { return };
        let Some(link) = &mut way.link else { return };
        loop {
            if let Some(id) = way.id {
                let carrier = OnOpenerLink { link, id, pending_bytes_max: PENDING_BYTES_MAX };
                self.session.transmit(here, &mut Copied { carrier, copies, session: self.id });
            }
            let Some(mut chunk) = way.unsent.take().or_else(|| link.flush(here)) else { break };
            let taken = out.send(way.conn, chunk.as_slice());
            chunk.advance(taken);
            if !chunk.is_empty() {
                way.unsent = Some(chunk);
                break;
            }
            link.recycle(chunk);
        }
        if self.session.is_attached() && self.session.awaits() {
            self.vigil.awaits(here);
        }
    }
}
