//! Timers that all run for the same time: a queue in the order of their ends.

use alloc::collections::VecDeque;
use core::time::Duration;

use spillway_transport::{Conn, Time};

/// Deadlines of connections. One that is no longer wanted stays until its time, or until they are many.
#[derive(Debug)]
pub(crate) struct Deadlines {
    delay: Duration,
    queue: VecDeque<(Time, Conn)>,
    prune_at: usize,
}

impl Deadlines {
    const PRUNE_MIN: usize = 64;

    pub(crate) fn new(delay: Duration) -> Deadlines {
        Deadlines { delay, queue: VecDeque::new(), prune_at: Deadlines::PRUNE_MIN }
    }

    /// Starts a timer. `wanted` tells which of the others still are: there are never more than twice as many
    /// in the queue, and a few.
    pub(crate) fn start(&mut self, now: Time, conn: Conn, wanted: impl Fn(Conn) -> bool) {
        if self.queue.len() >= self.prune_at {
            self.queue.retain(|(_, conn)| wanted(*conn));
            self.prune_at = Deadlines::PRUNE_MIN + 2 * self.queue.len();
        }
        self.queue.push_back((now + self.delay, conn));
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.queue.front().map(|(at, _)| *at)
    }

    pub(crate) fn pop(&mut self, now: Time) -> Option<Conn> {
        if self.next()? > now {
            return None;
        }
        self.queue.pop_front().map(|(_, conn)| conn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_order_and_bounded() {
        let conn = |slot| Conn { slot, generation: 1 };
        let mut deadlines = Deadlines::new(Duration::from_nanos(10));
        for slot in 0..100_000 {
            deadlines.start(Time(u64::from(slot)), conn(slot), |conn| conn.slot % 1000 == 0);
        }
        assert!(deadlines.queue.len() <= 64 + 2 * 100 + 1, "{}", deadlines.queue.len());
        assert_eq!(deadlines.next(), Some(Time(10)));
        assert_eq!(deadlines.pop(Time(9)), None);
        assert_eq!(deadlines.pop(Time(10)), Some(conn(0)));
        assert_eq!(deadlines.pop(Time(10)), None);
    }
}
