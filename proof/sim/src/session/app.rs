//! The server's application for one session: reads at its own pace, replies with 0, 1 or 4 times as many
//! bytes, and closes at a random time. After a partial write it waits for room.

use spillway_batch::CloseReason;
use spillway_wire::session::SessionId;

use super::planted_fault::PlantedFault;
use crate::rng::Rng;

/// The application reads no requests while it has this many unwritten bytes of replies.
const UNWRITTEN_BYTES_MAX: u64 = 64 * 1024;

pub(crate) struct App {
    pub(crate) id: SessionId,
    pub(crate) is_accepted: bool,
    pub(crate) unread: u64,
    read: u64,
    pub(crate) replied: u64,
    pub(crate) client_finished: bool,
    /// False from a partial write until the next event that reports room.
    pub(crate) may_write: bool,
    finished: bool,
    /// Closes early, after it has read this many bytes.
    close_at: Option<u64>,
    /// Closes right after the end of its replies; otherwise the client closes first.
    closes_first: bool,
}

pub(crate) enum End {
    Open,
    /// Ends the replies, and closes at once if `closes`.
    Finish {
        closes: bool,
    },
    /// Closes early, for this reason.
    Close(CloseReason),
}

impl App {
    pub(crate) fn new(id: SessionId, early_ends_per_1000: u64, rng: &mut Rng) -> App {
        let ends_early = rng.chance(early_ends_per_1000, 1000);
        App {
            id,
            is_accepted: false,
            unread: 0,
            read: 0,
            replied: 0,
            client_finished: false,
            may_write: true,
            finished: false,
            close_at: ends_early.then(|| rng.log_uniform(1, 50_000)),
            closes_first: rng.chance(1, 2),
        }
    }

    /// Length of the replies to all requests read so far.
    fn reply_bytes(&self) -> u64 {
        self.read * [0, 1, 1, 4][usize::from(self.id.0[0] % 4)]
    }

    pub(crate) fn unwritten(&self) -> u64 {
        self.reply_bytes() - self.replied
    }

    /// Maximum number of bytes that the application may read before it has written more replies.
    fn readable(&self) -> u64 {
        // Each byte read causes up to four bytes of replies.
        self.unread.min(UNWRITTEN_BYTES_MAX.saturating_sub(self.unwritten()) / 4)
    }

    /// Reads a random part of the readable bytes; returns its length.
    pub(crate) fn read_some(&mut self, rng: &mut Rng) -> u64 {
        let part = self.readable().min(rng.log_uniform(1, 64 * 1024));
        self.unread -= part;
        self.read += part;
        part
    }

    /// Whether and how the application ends now. [`PlantedFault::EarlyEnd`] ends before all replies are written.
    pub(crate) fn next_end(&mut self, planted: Option<PlantedFault>, rng: &mut Rng) -> End {
        if self.close_at.is_some_and(|at| self.read >= at) {
            return End::Close(rng.pick(&[CloseReason::Normal, CloseReason::Reset]));
        }
        let has_replied = self.unwritten() == 0 || planted == Some(PlantedFault::EarlyEnd);
        if self.finished || !self.client_finished || self.unread > 0 || !has_replied {
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
