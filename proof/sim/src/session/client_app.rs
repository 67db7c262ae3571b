//! A client's application: writes and reads at its own pace, and ends its session at its own time. After a partial
//! write it waits for room.

use spillway_batch::CloseReason;
use spillway_session::{Driver, SessionEnd};
use spillway_transport::LostReason;
use spillway_wire::session::SessionId;

use super::books::Shared;
use super::canary::Canary;
use super::client_behaviour::ClientBehaviour;
use crate::rng::Rng;

pub(crate) struct ClientApp {
    id: SessionId,
    to_write: u64,
    written: u64,
    /// False between a partial write and the next event of room.
    may_write: bool,
    has_finished: bool,
    /// Resets its session when it has written this many bytes.
    leaves_at: Option<u64>,
    unread: u64,
    /// Closes in order as soon as it has written all.
    closes_early: bool,
    /// Reads little at a time, from its session and from its socket.
    is_slow: bool,
    /// How the session ended, as last checked.
    seen: Option<SessionEnd>,
    has_closed: bool,
}

impl ClientApp {
    pub(crate) fn drawn(id: SessionId, behaviour: &ClientBehaviour, rng: &mut Rng) -> ClientApp {
        let ends_early = rng.chance(behaviour.early_ends_in_1000, 1000);
        ClientApp {
            id,
            to_write: rng.scale(1, behaviour.bytes_max),
            written: 0,
            may_write: true,
            has_finished: false,
            leaves_at: ends_early.then(|| rng.scale(1, behaviour.bytes_max)),
            unread: 0,
            closes_early: rng.chance(behaviour.early_closes_in_1000, 1000),
            is_slow: rng.chance(1, 4),
            seen: None,
            has_closed: false,
        }
    }

    pub(crate) fn calm_down(&mut self) {
        self.is_slow = false;
        self.to_write = self.to_write.min(self.written + 1_000);
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow
    }

    pub(crate) fn has_room(&mut self) {
        self.may_write = true;
    }

    pub(crate) fn receives(&mut self, bytes: &[u8], books: &Shared) {
        self.unread += bytes.len() as u64;
        let mut books = books.borrow_mut();
        books.client_reads(self.id, bytes);
        books.client_holds(self.id, self.unread);
    }

    /// Records the end of the session, if the driver reports one, and the close that follows it.
    pub(crate) fn note_end(&mut self, driver: &Driver<LostReason>, canary: Option<Canary>, books: &Shared) {
        let Some(end) = driver.end() else { return };
        let mut books = books.borrow_mut();
        if self.seen.replace(end) != Some(end) {
            match end {
                SessionEnd::InOrder => books.client_sees_end(self.id),
                SessionEnd::Reset(CloseReason::Reset) | SessionEnd::Refused => {}
                SessionEnd::Reset(reason) => books.client_sees_break(self.id, reason),
                SessionEnd::Gone(gone) => {
                    let further = u64::from(canary == Some(Canary::GoneFurther));
                    books.client_sees_gone(self.id, gone.acknowledged + further);
                }
                SessionEnd::Absent(Some(gone)) => books.client_finds_absent(self.id, gone.acknowledged),
                SessionEnd::GivenUp | SessionEnd::Absent(None) => books.client_gives_up(self.id),
            }
        }
        if driver.is_closed_here() && !self.has_closed {
            self.has_closed = true;
            books.client_closes(self.id, end != SessionEnd::InOrder);
        }
    }

    /// Writes and reads some bytes, and ends what is to be ended.
    pub(crate) fn work(&mut self, driver: &mut Driver<LostReason>, rng: &mut Rng, books: &Shared) {
        if self.has_closed || driver.is_over() {
            return;
        }
        let mut books = books.borrow_mut();
        let most = (self.to_write - self.written.min(self.to_write)).min(rng.scale(1, 32 * 1024));
        // One byte more than there is room for, so that room is reported later.
        let most = most.min(driver.room() as u64 + 1);
        if self.may_write && most > 0 {
            let bytes = books.request(self.id, most);
            let taken = driver.write(&bytes).unwrap_or(0) as u64;
            self.may_write = taken == most;
            self.written += taken;
            books.wrote(self.id, taken);
        }
        if self.written >= self.to_write && !self.has_finished {
            self.has_finished = true;
            books.client_finishes(self.id);
            driver.finish();
        }
        let part = if self.is_slow { self.unread.min(rng.scale(1, 2_000)) } else { self.unread };
        self.unread -= part;
        let outcome = driver.consumed(part as usize);
        debug_assert_eq!(outcome, Ok(()), "at most what is unread");
        let resets = self.leaves_at.is_some_and(|at| self.written >= at);
        let is_done = self.has_finished && (self.closes_early || (self.seen.is_some() && self.unread == 0));
        if resets || is_done {
            self.has_closed = true;
            books.client_closes(self.id, resets);
            driver.close(if resets { CloseReason::Reset } else { CloseReason::Normal });
        }
    }

    /// Whether the application can work without a further event.
    pub(crate) fn has_work(&self) -> bool {
        !self.has_closed && (self.unread > 0 || (self.written < self.to_write && self.may_write))
    }
}
