//! When each place of the table wants to be looked after.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Nobody needs a timer sooner: fewer wake-ups.
const GRAIN: Duration = Duration::from_millis(1);

/// One for each place at most. Those of places that somebody has left stay until they are due.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    all: BTreeSet<(Instant, u64)>,
}

impl Timers {
    /// Has a place looked after at `wanted`, unless it will be by then. Returns when it will be.
    pub fn set(&mut self, token: u64, armed: Option<Instant>, wanted: Option<Instant>) -> Option<Instant> {
        // A little later, so that one that is moved on and on is not set each time.
        let wanted = wanted.map(|at| at + GRAIN);
        match (armed, wanted) {
            (Some(armed), Some(wanted)) if armed <= wanted => Some(armed),
            (_, Some(wanted)) => {
                if let Some(armed) = armed {
                    self.all.remove(&(armed, token));
                }
                self.all.insert((wanted, token));
                Some(wanted)
            }
            (armed, None) => armed,
        }
    }

    pub fn next(&self) -> Option<Instant> {
        self.all.first().map(|(at, _)| *at)
    }

    /// A token that is due, and when it was.
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, u64)> {
        self.all.first().filter(|(at, _)| *at <= now)?;
        self.all.pop_first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_one_timer() {
        let (mut timers, start) = (Timers::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let armed = timers.set(7, None, Some(at(10)));
        assert_eq!(armed, Some(at(11)));
        assert_eq!(timers.set(7, armed, Some(at(500))), armed, "it rings too early, and is set anew then");
        assert_eq!(timers.set(7, armed, Some(at(5))), Some(at(6)));
        assert_eq!((timers.pop(at(5)), timers.next()), (None, Some(at(6))));
        assert_eq!(timers.pop(at(6)), Some((at(6), 7)));
        assert_eq!(timers.set(7, None, None), None);
        assert_eq!((timers.pop(at(1000)), timers.next()), (None, None), "the later one was taken back");
    }

    #[test]
    fn a_busy_place_leaves_no_timers_behind() {
        let (mut timers, start) = (Timers::default(), Instant::now());
        let mut armed = None;
        for request in 0..1000 {
            let now = start + Duration::from_millis(request * 50);
            // A sign of life is due much later; a request has it due soon, and then that rings.
            armed = timers.set(7, armed, Some(now + Duration::from_secs(5)));
            armed = timers.set(7, armed, Some(now + Duration::from_millis(40)));
            assert_eq!(timers.all.len(), 1);
            assert_eq!(timers.pop(now + Duration::from_millis(45)).map(|(at, _)| Some(at)), Some(armed));
            armed = None;
        }
    }
}
