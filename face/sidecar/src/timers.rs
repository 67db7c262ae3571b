//! One timer for each slot of the connection table.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Each timer is set this much later than requested, which saves wake-ups, and updates of timers that move often.
const GRANULARITY: Duration = Duration::from_millis(1);

/// At most one timer for each slot in use. Timers of freed slots stay until they are due; the caller ignores them.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    all: BTreeSet<(Instant, u64)>,
}

impl Timers {
    /// Sets a slot's timer to `wanted`, unless its timer `armed` is due earlier. Returns when the timer is due.
    pub fn set(&mut self, token: u64, armed: Option<Instant>, wanted: Option<Instant>) -> Option<Instant> {
        let wanted = wanted.map(|at| at + GRANULARITY);
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

    /// The next due timer: its time and token. Call until `None`.
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, u64)> {
        self.all.first().filter(|(at, _)| *at <= now)?;
        self.all.pop_first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_has_one_timer() {
        let (mut timers, start) = (Timers::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let armed = timers.set(7, None, Some(at(10)));
        assert_eq!(armed, Some(at(11)));
        assert_eq!(timers.set(7, armed, Some(at(500))), armed, "the earlier timer should stay");
        assert_eq!(timers.set(7, armed, Some(at(5))), Some(at(6)));
        assert_eq!((timers.pop(at(5)), timers.next()), (None, Some(at(6))));
        assert_eq!(timers.pop(at(6)), Some((at(6), 7)));
        assert_eq!(timers.set(7, None, None), None);
        assert_eq!(
            (timers.pop(at(1000)), timers.next()),
            (None, None),
            "the earlier timer should have replaced the later one"
        );
    }

    #[test]
    fn busy_slot_leaves_no_timers_behind() {
        let (mut timers, start) = (Timers::default(), Instant::now());
        let mut armed = None;
        for request in 0..1000 {
            let now = start + Duration::from_millis(request * 50);
            // First a probe that is due much later, then a request's timeout, which fires first.
            armed = timers.set(7, armed, Some(now + Duration::from_secs(5)));
            armed = timers.set(7, armed, Some(now + Duration::from_millis(40)));
            assert_eq!(timers.all.len(), 1);
            assert_eq!(timers.pop(now + Duration::from_millis(45)).map(|(at, _)| Some(at)), Some(armed));
            armed = None;
        }
    }
}
