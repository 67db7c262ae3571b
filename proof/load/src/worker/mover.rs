//! The progress of a command that moves several connections.

use crate::report::Move;

#[derive(Debug)]
pub(super) struct Mover {
    pub(super) report: Move,
    pub(super) given_ns: u64,
    pub(super) pace_ns: u64,
    pub(super) next_start_ns: u64,
    /// The connection that starts first: the one that sends the next arrival at the time of the command. Every
    /// connection then sends an arrival, and receives its first reply, soon after its start.
    pub(super) first: usize,
    /// Number of connections, from `first` on, that have started or need no move.
    pub(super) scanned: usize,
    pub(super) not_started: u32,
    /// Number of started connections without a reply on the new carrier.
    pub(super) awaiting_first_reply: u32,
}

impl Mover {
    /// Counts a started connection and sets the next start.
    pub(super) fn connection_started(&mut self, scanned: usize) {
        self.scanned = scanned;
        self.not_started -= 1;
        self.next_start_ns = self.next_start_ns.saturating_add(self.pace_ns);
        self.awaiting_first_reply += 1;
    }

    /// Counts a connection's first reply on the new carrier.
    pub(super) fn connection_moved(&mut self, now_ns: u64) {
        self.awaiting_first_reply -= 1;
        self.report.first_replies_us.push(now_ns.saturating_sub(self.given_ns).div_ceil(1000));
    }

    /// Counts a started connection whose move has failed.
    pub(super) fn connection_failed(&mut self) {
        self.awaiting_first_reply -= 1;
        self.report.failed += 1;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.not_started == 0 && self.awaiting_first_reply == 0
    }

    pub(super) fn into_report(mut self) -> Move {
        self.report.complete = self.has_ended();
        self.report.first_replies_us.sort_unstable();
        self.report
    }
}
