//! The end: no more connections are taken, and those that are there end when they are idle.

use std::time::{Duration, Instant};

use tracing::info;

use super::Worker;
use crate::counters::Ending;
use crate::table::Place;

/// How often connections are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long servers may take to hear of the last sessions' ends.
const LAST_WORDS: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Draining {
    deadline: Instant,
    pub look_at: Instant,
}

impl Worker {
    pub(super) fn begin_drain(&mut self, now: Instant, within: Duration) {
        // Whoever has connected by now is served.
        (0..self.listeners.len() as u64).for_each(|listener| self.accept(now, listener));
        self.stop_watching_listeners();
        self.listeners.clear();
        self.accept_at = None;
        self.draining = Some(Draining { deadline: now + within, look_at: now });
    }

    /// Ends whoever is idle. True when nobody is left.
    pub(super) fn is_drained(&mut self, now: Instant) -> bool {
        let Some(draining) = &mut self.draining else { return false };
        if now < draining.look_at {
            return false;
        }
        draining.look_at = now + LOOK;
        let deadline = draining.deadline;
        let mut is_anybody_left = false;
        let mut reset = 0;
        for index in self.table.in_use() {
            match self.table.get(index) {
                Place::Taken(pair) if pair.is_idle(now) => self.end(now, index, Ending::Shutdown, true),
                Place::Taken(_) if deadline <= now => {
                    self.end(now, index, Ending::Shutdown, false);
                    reset += 1;
                }
                Place::Arriving(_) if deadline <= now => self.turn_away_arriving(index, None),
                Place::Opening(_) if deadline <= now => self.give_up(now, index),
                _ => {}
            }
            is_anybody_left |= !matches!(self.table.get(index), Place::Free);
        }
        if reset > 0 {
            info!(connections = reset, "reset at the deadline: they were not idle");
        }
        !is_anybody_left || deadline + LAST_WORDS <= now
    }

    /// At once.
    pub(super) fn end_all(&mut self, now: Instant) {
        for index in self.table.in_use() {
            self.end(now, index, Ending::Shutdown, false);
        }
    }
}
