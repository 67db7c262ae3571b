//! How far a plain client has acknowledged its replies, for a server that keeps them until then: what the client's TCP says is
//! passed on, at most once in 20 ms or 64 KB, and after the server's close, too.

use spillway_batch::{CloseReason, Id};
use spillway_transport::Conn;

use crate::links::Linked;

/// The server is told after this many bytes, or half of what it keeps if that is less; or when the timer ends.
const TELL_BYTES: u64 = 64 * 1024;

/// Of one plain client whose server was asked to keep replies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Acknowledging {
    /// Bytes of replies that the client's TCP has acknowledged.
    acknowledged: u64,
    /// How many of these the server was told of.
    told: u64,
    /// The timer that tells the server runs.
    is_due: bool,
}

impl Acknowledging {
    /// The client's TCP has all bytes up to this offset. True: a timer is to be started.
    #[must_use]
    pub(crate) fn heard(&mut self, through: u64, id: Id, linked: &mut Linked) -> bool {
        self.acknowledged = self.acknowledged.max(through);
        let step = TELL_BYTES.min(u64::from(linked.initial_credit()) / 2).max(1);
        if self.acknowledged - self.told >= step {
            self.tell(id, linked);
            return false;
        }
        self.acknowledged > self.told && !core::mem::replace(&mut self.is_due, true)
    }

    /// Whether a timer runs.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }

    /// The timer has ended. None: the link is another by now.
    pub(crate) fn handle_timeout(&mut self, id: Id, linked: Option<&mut Linked>) {
        self.is_due = false;
        if let Some(linked) = linked {
            self.tell(id, linked);
        }
    }

    fn tell(&mut self, id: Id, linked: &mut Linked) {
        if self.acknowledged > self.told {
            linked.acknowledge(id, self.acknowledged);
            self.told = self.acknowledged;
        }
    }
}

/// What a server that has closed is owed: the last acknowledgement, and our own close, until which it keeps the last
/// replies.
#[derive(Debug)]
pub(crate) struct Owed {
    link: usize,
    id: Id,
    /// Bytes of replies in all.
    replies: u64,
    acknowledging: Acknowledging,
}

impl Owed {
    /// After the server has closed. Nothing is owed where replies are not kept, or where the client has them all.
    pub(crate) fn new(
        (link, id): (usize, Id),
        replies: u64,
        acknowledging: Option<Acknowledging>,
        linked: &mut Linked,
    ) -> Option<Owed> {
        let mut acknowledging = acknowledging?;
        if acknowledging.acknowledged >= replies {
            acknowledging.tell(id, linked);
            return None;
        }
        Some(Owed { link, id, replies, acknowledging })
    }

    /// Index of the link of the server that is owed.
    pub(crate) fn link(&self) -> usize {
        self.link
    }

    /// What the client's TCP has acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledging.acknowledged
    }

    /// Whether an acknowledgement up to this offset is the last one.
    pub(crate) fn is_last(&self, through: u64) -> bool {
        through >= self.replies
    }

    pub(crate) fn is_due(&self) -> bool {
        self.acknowledging.is_due
    }

    /// The client's TCP has bytes up to this offset, but not all. True: a timer is to be started.
    #[must_use]
    pub(crate) fn heard(&mut self, conn: Conn, through: u64, linked: Option<&mut Linked>) -> bool {
        let linked = linked.filter(|linked| linked.is_of(self.id, conn));
        linked.is_some_and(|linked| self.acknowledging.heard(through, self.id, linked))
    }

    pub(crate) fn handle_timeout(&mut self, conn: Conn, linked: Option<&mut Linked>) {
        let linked = linked.filter(|linked| linked.is_of(self.id, conn));
        self.acknowledging.handle_timeout(self.id, linked);
    }

    /// The client has everything, which is `through`, or has gone.
    pub(crate) fn settle(mut self, conn: Conn, through: Option<u64>, linked: Option<&mut Linked>) {
        self.acknowledging.acknowledged = through.unwrap_or(self.acknowledging.acknowledged);
        // The link may be another by now.
        if let Some(linked) = linked.filter(|linked| linked.is_of(self.id, conn)) {
            self.acknowledging.tell(self.id, linked);
            linked.close_plain(self.id, CloseReason::Normal);
        }
    }
}
