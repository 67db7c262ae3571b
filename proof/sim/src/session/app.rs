//! The application behind a server's sessions: reads at its own pace, replies with an echo, with more or with nothing, and
//! closes when its time has come. It writes again only when it was told that there is room.

use spillway_batch::CloseReason;
use spillway_wire::session::SessionId;

use super::canary::Canary;
use crate::rng::Rng;

/// Replies that the application prepares before it stops reading requests.
const OWED_BYTES_MAX: u64 = 64 * 1024;

/// One session as the application sees it.
pub(crate) struct App {
    pub(crate) id: SessionId,
    pub(crate) is_accepted: bool,
    /// Received and not yet read by the application.
    pub(crate) waiting: u64,
    read: u64,
    pub(crate) replied: u64,
    pub(crate) client_finished: bool,
    /// It was told of room since its last reply was taken in part only.
    pub(crate) may_write: bool,
    finished: bool,
    /// Closes when it has read this much.
    close_at: Option<u64>,
    /// Closes as soon as it has finished, or waits for the client to.
    closes_first: bool,
}

/// How an application ends a session.
pub(crate) enum End {
    /// It does not, yet.
    Open,
    /// It writes no more, or at once closes too.
    Finish { closes: bool },
    /// It closes before its time.
    Close(CloseReason),
}

impl App {
    /// Of a session that has begun.
    pub(crate) fn new(id: SessionId, rude_in_1000: u64, rng: &mut Rng) -> App {
        let rude = rng.chance(rude_in_1000, 1000);
        App {
            id,
            is_accepted: false,
            waiting: 0,
            read: 0,
            replied: 0,
            client_finished: false,
            may_write: true,
            finished: false,
            close_at: rude.then(|| rng.scale(1, 50_000)),
            closes_first: rng.chance(1, 2),
        }
    }

    /// Replies for what was read.
    fn owed(&self) -> u64 {
        self.read * [0, 1, 1, 4][usize::from(self.id.0[0] % 4)]
    }

    /// What it would reply now.
    pub(crate) fn unsaid(&self) -> u64 {
        self.owed() - self.replied
    }

    /// How much of what waits it may read before it has replied more.
    fn readable(&self) -> u64 {
        // Each byte read may be owed four times.
        self.waiting.min(OWED_BYTES_MAX.saturating_sub(self.unsaid()) / 4)
    }

    /// Reads some; how much.
    pub(crate) fn reads(&mut self, rng: &mut Rng) -> u64 {
        let part = self.readable().min(rng.scale(1, 64 * 1024));
        self.waiting -= part;
        self.read += part;
        part
    }

    /// What to do about its end. A planted fault has it end too early.
    pub(crate) fn ends(&mut self, canary: Option<Canary>, rng: &mut Rng) -> End {
        if self.close_at.is_some_and(|at| self.read >= at) {
            return End::Close(rng.pick(&[CloseReason::Normal, CloseReason::Reset]));
        }
        let has_replied = self.unsaid() == 0 || canary == Some(Canary::EarlyEnd);
        if self.finished || !self.client_finished || self.waiting > 0 || !has_replied {
            return End::Open;
        }
        self.finished = true;
        End::Finish { closes: self.closes_first }
    }

    /// Whether it can get on without being told anything.
    pub(crate) fn is_busy(&self) -> bool {
        !self.is_accepted || self.readable() > 0 || (self.may_write && !self.finished && self.unsaid() > 0)
    }
}
