//! Acknowledgements of plain clients, for a server that keeps replies until the client's TCP has acknowledged them.
//! They are forwarded at most once for each 20 ms or 64 KiB, also after the server's close.

use spillway_batch::{CloseReason, Id};
use spillway_transport::Conn;

use crate::links::Linked;

/// Acknowledged bytes after which an acknowledgement is forwarded without waiting for the timer. Half of the server's
/// initial credit applies if that is less.
const REPORT_BYTES: u64 = 64 * 1024;

/// Acknowledgements of one plain client whose server keeps replies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplyAcks {
    /// Offset up to which the client's TCP has acknowledged replies.
    acknowledged: u64,
    /// Offset that was reported to the server.
    reported: u64,
    timer_runs: bool,
}

impl ReplyAcks {
    /// The client's TCP has acknowledged all bytes up to `through`. True: start the timer.
    #[must_use]
    pub(crate) fn handle_acknowledged(&mut self, through: u64, id: Id, linked: &mut Linked) -> bool {
        self.acknowledged = self.acknowledged.max(through);
        let report_bytes = REPORT_BYTES.min(u64::from(linked.initial_credit()) / 2).max(1);
        if self.acknowledged - self.reported >= report_bytes {
            self.report(id, linked);
            return false;
        }
        self.acknowledged > self.reported && !core::mem::replace(&mut self.timer_runs, true)
    }

    pub(crate) fn timer_runs(&self) -> bool {
        self.timer_runs
    }

    /// `linked`: the link that carries the client, or `None` if another link has its index now.
    pub(crate) fn handle_timeout(&mut self, id: Id, linked: Option<&mut Linked>) {
        self.timer_runs = false;
        if let Some(linked) = linked {
            self.report(id, linked);
        }
    }

    fn report(&mut self, id: Id, linked: &mut Linked) {
        if self.acknowledged > self.reported {
            linked.acknowledge(id, self.acknowledged);
            self.reported = self.acknowledged;
        }
    }
}

/// The last acknowledgement and the helper's *close*. A server that has closed keeps the last replies until it gets
/// both.
#[derive(Debug)]
pub(crate) struct FinalAck {
    link: usize,
    id: Id,
    /// Length of all replies in bytes.
    replies: u64,
    reply_acks: ReplyAcks,
}

impl FinalAck {
    /// Call this when the server has closed. `None`: the server does not keep replies, or the client has acknowledged
    /// all replies.
    pub(crate) fn new(
        (link, id): (usize, Id),
        replies: u64,
        reply_acks: Option<ReplyAcks>,
        linked: &mut Linked,
    ) -> Option<FinalAck> {
        let mut reply_acks = reply_acks?;
        if reply_acks.acknowledged >= replies {
            reply_acks.report(id, linked);
            return None;
        }
        Some(FinalAck { link, id, replies, reply_acks })
    }

    pub(crate) fn link(&self) -> usize {
        self.link
    }

    /// Offset up to which the client's TCP has acknowledged replies.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.reply_acks.acknowledged
    }

    pub(crate) fn is_last(&self, through: u64) -> bool {
        through >= self.replies
    }

    pub(crate) fn timer_runs(&self) -> bool {
        self.reply_acks.timer_runs
    }

    /// The client's TCP has acknowledged a part of the replies, up to `through`. True: start the timer.
    #[must_use]
    pub(crate) fn handle_acknowledged(
        &mut self,
        conn: Conn,
        through: u64,
        linked: Option<&mut Linked>,
    ) -> bool {
        let linked = linked.filter(|linked| linked.id_belongs_to(self.id, conn));
        linked.is_some_and(|linked| self.reply_acks.handle_acknowledged(through, self.id, linked))
    }

    pub(crate) fn handle_timeout(&mut self, conn: Conn, linked: Option<&mut Linked>) {
        let linked = linked.filter(|linked| linked.id_belongs_to(self.id, conn));
        self.reply_acks.handle_timeout(self.id, linked);
    }

    /// Sends the last acknowledgement and the *close*. `through`: the acknowledged offset, or `None` if the client's
    /// connection was lost.
    pub(crate) fn send(mut self, conn: Conn, through: Option<u64>, linked: Option<&mut Linked>) {
        self.reply_acks.acknowledged = through.unwrap_or(self.reply_acks.acknowledged);
        // Another link may have the index now.
        if let Some(linked) = linked.filter(|linked| linked.id_belongs_to(self.id, conn)) {
            self.reply_acks.report(self.id, linked);
            linked.close_plain(self.id, CloseReason::Normal);
        }
    }
}
