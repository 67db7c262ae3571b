//! Checks all sessions, outside the code under test: the bytes that both applications send and receive, and
//! the messages that open, resume and end sessions. This file has the totals of a run and its violations.
//!
//! - `client`, `server`: what the two ends do and observe
//! - `entry`: one session
//! - `ended_sessions`: the records of ended sessions that the server must have

mod client;
mod ended_sessions;
mod entry;
mod server;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use spillway_session::{StreamLimits, TableLimits};
use spillway_wire::session::SessionId;

use super::check::{Check, Violation};
use crate::violations::Violations;
use ended_sessions::EndedSessions;
use entry::Entry;

/// All sessions, and the violations found.
#[derive(Debug)]
pub struct Checker {
    sessions: BTreeMap<SessionId, Entry>,
    violations: Violations<Violation>,
    /// The check that is switched off.
    check_off: Option<Check>,
    client_limits: StreamLimits,
    server_limits: TableLimits,
    ended: EndedSessions,
    open: usize,
    /// Bytes delivered in both directions.
    pub delivered: u64,
    /// Sessions that ended in good order and complete.
    pub completed: u64,
    /// Sessions whose clients received *gone*.
    pub gone: u64,
    /// Resumptions on another carrier.
    pub moves: u64,
    /// Replayed opening messages, or answers to them, that were refused.
    pub copies_refused: u64,
    /// Replayed opening messages that arrived before their originals.
    pub copies_accepted: u64,
}

/// Shared by all applications of one world.
pub type SharedChecker = Rc<RefCell<Checker>>;

impl Checker {
    /// A checker without sessions. The limits bound each end of a session; the check `check_off` is switched off.
    pub fn new(client_limits: StreamLimits, server_limits: TableLimits, check_off: Option<Check>) -> Checker {
        Checker {
            sessions: BTreeMap::new(),
            violations: Violations::default(),
            check_off,
            client_limits,
            server_limits,
            ended: EndedSessions::default(),
            open: 0,
            delivered: 0,
            completed: 0,
            gone: 0,
            moves: 0,
            copies_refused: 0,
            copies_accepted: 0,
        }
    }

    /// Records a violation, unless the check is switched off.
    pub fn violation(&mut self, check: Check, what: String) {
        if self.check_off != Some(check) {
            self.violations.push(Violation { check, what });
        }
    }

    /// The first violations found; later ones are dropped.
    pub fn violations(&self) -> &[Violation] {
        self.violations.as_slice()
    }

    /// Sessions begun so far.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Sessions that have not ended at their clients.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Grows with every delivered byte, every ended session and every move.
    pub fn progress(&self) -> u64 {
        self.delivered + self.completed + self.gone + self.moves
    }

    fn entry(&mut self, id: SessionId) -> &mut Entry {
        self.sessions.entry(id).or_default()
    }

    fn session_violation(&mut self, check: Check, id: SessionId, problem: &str) {
        let entry = self.entry(id).clone();
        self.violation(check, format!("session {id:?}: {problem}: {entry:?}"));
    }

    /// Records each session that has not ended as a violation, at most three.
    pub fn all_ended(&mut self) {
        let open = self.sessions.iter().filter(|(_, entry)| !entry.ended_at_client).map(|(id, _)| *id);
        let open: Vec<SessionId> = open.take(3).collect();
        open.into_iter().for_each(|id| self.session_violation(Check::Liveness, id, "has not ended"));
    }
}
