//! Draining: accepts no more connections; open connections end when they are idle, or at the deadline.

use std::time::{Duration, Instant};

use tracing::info;

use super::Worker;
use crate::counters::Ending;
use crate::socket::BACKLOG;
use crate::table::Entry;

const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Time after the deadline for sessions to send their end to the server.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Draining {
    deadline: Instant,
    pub check_at: Instant,
}

impl Worker {
    pub(super) fn begin_drain(&mut self, now: Instant, within: Duration) {
        // First accept the clients in the queue: closing the listener would reset them.
        for listener in 0..self.listeners.len() as u64 {
            self.accept_at_most(now, listener, BACKLOG as usize + 1);
        }
        self.stop_watching_listeners();
        self.listeners.clear();
        self.accept_at = None;
        self.draining = Some(Draining { deadline: now + within, check_at: now });
    }

    /// Closes idle connections; after the deadline, all connections. Returns whether draining is complete.
    pub(super) fn continue_drain(&mut self, now: Instant) -> bool {
        let Some(draining) = &mut self.draining else { return false };
        if now < draining.check_at {
            return false;
        }
        draining.check_at = now + CHECK_INTERVAL;
        let deadline = draining.deadline;
        let mut has_connections = false;
        let mut reset = 0;
        for index in self.table.indexes_in_use() {
            match self.table.get(index) {
                Entry::Open(pair) if pair.is_idle(now) => self.close(now, index, Ending::Shutdown, true),
                Entry::Open(_) if deadline <= now => {
                    self.close(now, index, Ending::Shutdown, false);
                    reset += 1;
                }
                Entry::AwaitingHeader(_) if deadline <= now => self.reject_awaiting(index, None),
                Entry::Opening(_) if deadline <= now => self.abandon_opening(now, index),
                _ => {}
            }
            has_connections |= !matches!(self.table.get(index), Entry::Free);
        }
        if reset > 0 {
            info!(connections = reset, "drain deadline: reset connections that were not idle");
        }
        !has_connections || deadline + CLOSE_GRACE <= now
    }

    pub(super) fn close_all(&mut self, now: Instant) {
        for index in self.table.indexes_in_use() {
            self.close(now, index, Ending::Shutdown, false);
        }
    }
}
