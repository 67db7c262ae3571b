//! Ends of waiting that all last the same time: a queue in their order.

use alloc::collections::VecDeque;
use core::time::Duration;

use spillway_transport::Time;

/// What no longer waits stays in the queue until its time, or until such are many.
#[derive(Debug)]
pub(crate) struct Waits<T> {
    duration: Duration,
    queue: VecDeque<(Time, T)>,
}

impl<T> Waits<T> {
    pub(crate) fn new(duration: Duration) -> Waits<T> {
        Waits { duration, queue: VecDeque::new() }
    }

    /// One begins. `waiting_max` bounds how many still wait, and `still_waits` tells which: the queue is never longer
    /// than twice as many and a few.
    pub(crate) fn start(&mut self, now: Time, what: T, waiting_max: usize, still_waits: impl Fn(&T) -> bool) {
        self.queue.push_back((now + self.duration, what));
        if self.queue.len() > 64 + 2 * waiting_max {
            self.queue.retain(|(_, what)| still_waits(what));
        }
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.queue.front().map(|(at, _)| *at)
    }

    pub(crate) fn pop(&mut self, now: Time) -> Option<T> {
        if self.next()? > now {
            return None;
        }
        self.queue.pop_front().map(|(_, what)| what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_order_and_bounded() {
        let mut waits = Waits::new(Duration::from_nanos(10));
        for n in 0..100_000_u64 {
            waits.start(Time(n), n, 100, |n| n % 1000 == 0);
            assert!(waits.queue.len() <= 64 + 2 * 100, "{}", waits.queue.len());
        }
        assert_eq!((waits.next(), waits.pop(Time(9)), waits.pop(Time(10))), (Some(Time(10)), None, Some(0)));
    }
}
