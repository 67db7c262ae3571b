//! When each place of the table wants to be looked after.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// Nobody needs a timer sooner: fewer wake-ups.
const GRAIN: Duration = Duration::from_millis(1);

/// One entry a place counts, its earliest; others of it are void.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u64)>>,
}

impl Timers {
    /// Has a place looked after at `wanted`, unless it will be by then. Returns when it will be.
    pub fn set(&mut self, token: u64, armed: Option<Instant>, wanted: Option<Instant>) -> Option<Instant> {
        // A little later, so that one that is moved on and on is not set each time.
        let wanted = wanted.map(|at| at + GRAIN);
        match (armed, wanted) {
            (Some(armed), Some(wanted)) if armed <= wanted => Some(armed),
            (_, Some(wanted)) => {
                self.heap.push(Reverse((wanted, token)));
                Some(wanted)
            }
            (armed, None) => armed,
        }
    }

    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// A token that is due, and when it was.
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, u64)> {
        self.heap.peek().filter(|Reverse((at, _))| *at <= now)?;
        self.heap.pop().map(|Reverse(due)| due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_one_timer_that_counts() {
        let (mut timers, start) = (Timers::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let armed = timers.set(7, None, Some(at(10)));
        assert_eq!(armed, Some(at(11)));
        assert_eq!(timers.set(7, armed, Some(at(500))), armed, "it rings too early, and is set anew then");
        assert_eq!(timers.heap.len(), 1);
        assert_eq!(timers.set(7, armed, Some(at(5))), Some(at(6)));
        assert_eq!((timers.pop(at(5)), timers.next()), (None, Some(at(6))));
        assert_eq!(timers.pop(at(6)), Some((at(6), 7)));
        assert_eq!(timers.set(7, None, None), None);
        assert_eq!(timers.pop(at(11)), Some((at(11), 7)), "void, as its owner sees");
    }
}
