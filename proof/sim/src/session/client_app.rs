//! A client's application: writes and reads at its own pace, and ends its session at a random time. After a
//! partial write it waits for room.

use spillway_batch::CloseReason;
use spillway_session::{Driver, SessionEnd};
use spillway_transport::LostReason;
use spillway_wire::session::SessionId;

use super::checker::SharedChecker;
use super::client_behaviour::ClientBehaviour;
use super::planted_fault::PlantedFault;
use crate::rng::Rng;

pub(crate) struct ClientApp {
    id: SessionId,
    to_write: u64,
    written: u64,
    /// False from a partial write until the next event that reports room.
    may_write: bool,
    has_finished: bool,
    /// Resets its session after it has written this many bytes.
    resets_at: Option<u64>,
    unread: u64,
    /// Closes in order as soon as it has written all its bytes.
    closes_early: bool,
    /// Reads few bytes at a time, from its session and from its socket.
    is_slow: bool,
    /// The session's end as last recorded at the checker.
    recorded_end: Option<SessionEnd>,
    has_closed: bool,
}

impl ClientApp {
    pub(crate) fn draw(id: SessionId, behaviour: &ClientBehaviour, rng: &mut Rng) -> ClientApp {
        let ends_early = rng.chance(behaviour.early_ends_per_1000, 1000);
        ClientApp {
            id,
            to_write: rng.log_uniform(1, behaviour.bytes_max),
            written: 0,
            may_write: true,
            has_finished: false,
            resets_at: ends_early.then(|| rng.log_uniform(1, behaviour.bytes_max)),
            unread: 0,
            closes_early: rng.chance(behaviour.early_closes_per_1000, 1000),
            is_slow: rng.chance(1, 4),
            recorded_end: None,
            has_closed: false,
        }
    }

    pub(crate) fn begin_calm_phase(&mut self) {
        self.is_slow = false;
        self.to_write = self.to_write.min(self.written + 1_000);
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow
    }

    pub(crate) fn has_room(&mut self) {
        self.may_write = true;
    }

    pub(crate) fn receive(&mut self, bytes: &[u8], checker: &SharedChecker) {
        self.unread += bytes.len() as u64;
        let mut checker = checker.borrow_mut();
        checker.client_reads(self.id, bytes);
        checker.client_holds(self.id, self.unread);
    }

    /// Records at the checker the session's end, if the driver reports one, and the close that follows.
    pub(crate) fn record_end(
        &mut self,
        driver: &Driver<LostReason>,
        planted: Option<PlantedFault>,
        checker: &SharedChecker,
    ) {
        let Some(end) = driver.end() else { return };
        let mut checker = checker.borrow_mut();
        if self.recorded_end.replace(end) != Some(end) {
            match end {
                SessionEnd::InOrder => checker.client_sees_end(self.id),
                SessionEnd::Reset(CloseReason::Reset) | SessionEnd::Refused => {}
                SessionEnd::Reset(reason) => checker.client_sees_protocol_error(self.id, reason),
                SessionEnd::Gone(gone) => {
                    let further = u64::from(planted == Some(PlantedFault::GoneFurther));
                    checker.client_sees_gone(self.id, gone.acknowledged + further);
                }
                SessionEnd::Absent(Some(gone)) => checker.client_finds_absent(self.id, gone.acknowledged),
                SessionEnd::GivenUp | SessionEnd::Absent(None) => checker.client_gives_up(self.id),
            }
        }
        if driver.is_closed_here() && !self.has_closed {
            self.has_closed = true;
            checker.client_closes(self.id, end != SessionEnd::InOrder);
        }
    }

    /// Writes and reads some bytes, and ends the requests or the session when their time has come.
    pub(crate) fn work(&mut self, driver: &mut Driver<LostReason>, rng: &mut Rng, checker: &SharedChecker) {
        if self.has_closed || driver.is_over() {
            return;
        }
        let mut checker = checker.borrow_mut();
        let part = (self.to_write - self.written.min(self.to_write)).min(rng.log_uniform(1, 32 * 1024));
        // Writes one byte more than there is room for, so that room is reported later.
        let part = part.min(driver.room() as u64 + 1);
        if self.may_write && part > 0 {
            let bytes = checker.request(self.id, part);
            let accepted = driver.write(&bytes).unwrap_or(0) as u64;
            self.may_write = accepted == part;
            self.written += accepted;
            checker.wrote(self.id, accepted);
        }
        if self.written >= self.to_write && !self.has_finished {
            self.has_finished = true;
            checker.client_finishes(self.id);
            driver.finish();
        }
        let read = if self.is_slow { self.unread.min(rng.log_uniform(1, 2_000)) } else { self.unread };
        self.unread -= read;
        let outcome = driver.consumed(read as usize);
        debug_assert_eq!(outcome, Ok(()), "the application should consume only unread bytes");
        let resets = self.resets_at.is_some_and(|at| self.written >= at);
        let is_done =
            self.has_finished && (self.closes_early || (self.recorded_end.is_some() && self.unread == 0));
        if resets || is_done {
            self.has_closed = true;
            checker.client_closes(self.id, resets);
            driver.close(if resets { CloseReason::Reset } else { CloseReason::Normal });
        }
    }

    /// Whether the application can work without a further event.
    pub(crate) fn has_work(&self) -> bool {
        !self.has_closed && (self.unread > 0 || (self.written < self.to_write && self.may_write))
    }
}
