//! The application behind a server's sessions: reads at its own pace, replies with nothing, an echo or more, and
//! closes at its own time. After a partial write it waits for room.

use spillway_batch::CloseReason;
use spillway_wire::session::SessionId;

use super::canary::Canary;
use crate::rng::Rng;

/// Replies that the application prepares before it stops reading requests.
const OWED_BYTES_MAX: u64 = 64 * 1024;

pub(crate) struct App {
    pub(crate) id: SessionId,
    pub(crate) is_accepted: bool,
    /// Received and not yet read by the application.
    pub(crate) waiting: u64,
    read: u64,
    pub(crate) replied: u64,
    pub(crate) client_finished: bool,
    /// False between a partial write and the next event of room.
    pub(crate) may_write: bool,
    finished: bool,
    /// Closes early, when it has read this many bytes.
    close_at: Option<u64>,
    /// Closes as soon as it has finished; otherwise the client closes first.
    closes_first: bool,
}

pub(crate) enum End {
    /// Stays open.
    Open,
    /// Writes no more, and closes at once if `closes`.
    Finish { closes: bool },
    /// Closes early.
    Close(CloseReason),
}

impl App {
    pub(crate) fn new(id: SessionId, early_ends_in_1000: u64, rng: &mut Rng) -> App {
        let ends_early = rng.chance(early_ends_in_1000, 1000);
        App {
            id,
            is_accepted: false,
            waiting: 0,
            read: 0,
            replied: 0,
            client_finished: false,
            may_write: true,
            finished: false,
            close_at: ends_early.then(|| rng.scale(1, 50_000)),
            closes_first: rng.chance(1, 2),
        }
    }

    /// Bytes of replies to everything read.
    fn owed(&self) -> u64 {
        self.read * [0, 1, 1, 4][usize::from(self.id.0[0] % 4)]
    }

    /// Bytes of replies that are not written yet.
    pub(crate) fn unwritten(&self) -> u64 {
        self.owed() - self.replied
    }

    /// Bytes that the application may read before it has replied more.
    fn readable(&self) -> u64 {
        // Each byte read causes up to four bytes of replies.
        self.waiting.min(OWED_BYTES_MAX.saturating_sub(self.unwritten()) / 4)
    }

    /// Reads some bytes; returns how many.
    pub(crate) fn reads(&mut self, rng: &mut Rng) -> u64 {
        let part = self.readable().min(rng.scale(1, 64 * 1024));
        self.waiting -= part;
        self.read += part;
        part
    }

    /// Decides about the application's end. [`Canary::EarlyEnd`] ends before all replies are written.
    pub(crate) fn next_end(&mut self, canary: Option<Canary>, rng: &mut Rng) -> End {
        if self.close_at.is_some_and(|at| self.read >= at) {
            return End::Close(rng.pick(&[CloseReason::Normal, CloseReason::Reset]));
        }
        let has_replied = self.unwritten() == 0 || canary == Some(Canary::EarlyEnd);
        if self.finished || !self.client_finished || self.waiting > 0 || !has_replied {
            return End::Open;
        }
        self.finished = true;
        End::Finish { closes: self.closes_first }
    }

    /// Whether the application can work without a further event.
    pub(crate) fn is_busy(&self) -> bool {
        !self.is_accepted || self.readable() > 0 || (self.may_write && !self.finished && self.unwritten() > 0)
    }
}
