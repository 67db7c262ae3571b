//! How far a move of many connections is.

use crate::report::Move;

/// A move under way.
#[derive(Debug)]
pub(super) struct Mover {
    /// `connections` is how many are concerned, `failed` how many of them failed so far.
    pub(super) report: Move,
    pub(super) given_ns: u64,
    pub(super) pace_ns: u64,
    /// When the next connection may be told.
    pub(super) next_ns: u64,
    /// The connection whose turn to get an arrival came next when the word was given: it is told first, so that
    /// the last one has an arrival soon after it was told.
    pub(super) first: usize,
    /// This many, from `first` on, have been told or need not be.
    pub(super) passed: usize,
    /// Still to be told.
    pub(super) left: u32,
    /// Told, no reply by the new carrier yet.
    pub(super) awaited: u32,
}

impl Mover {
    /// One more connection was told: this many, from the first on, have been told or need not be.
    pub(super) fn told(&mut self, passed: usize) {
        self.passed = passed;
        self.left -= 1;
        self.next_ns = self.next_ns.saturating_add(self.pace_ns);
        self.awaited += 1;
    }

    /// The first reply by the new carrier of a connection that was told.
    pub(super) fn answered(&mut self, now_ns: u64) {
        self.awaited -= 1;
        self.report.first_replies_us.push(now_ns.saturating_sub(self.given_ns).div_ceil(1000));
    }

    /// One that was told does not move.
    pub(super) fn failed(&mut self) {
        self.awaited -= 1;
        self.report.failed += 1;
    }

    pub(super) fn is_over(&self) -> bool {
        self.left == 0 && self.awaited == 0
    }

    /// What is reported of it, finished or not.
    pub(super) fn into_report(mut self) -> Move {
        self.report.complete = self.is_over();
        self.report.first_replies_us.sort_unstable();
        self.report
    }
}
