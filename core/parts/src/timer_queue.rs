use alloc::collections::VecDeque;
use core::time::Duration;

use spillway_transport::Time;

/// Timers of one duration, each with an item. A timer cannot be stopped: when a timer ends, the caller checks whether
/// its item still needs it. [`start`](Self::start) removes timers that are not needed whenever the queue has become
/// about twice as long as after the last removal. Methods take constant time; `start` and
/// [`poll_needed_timeout`](Self::poll_needed_timeout) take constant time on average.
#[derive(Debug)]
pub struct TimerQueue<T> {
    delay: Duration,
    queue: VecDeque<(Time, T)>,
    /// Length of the queue at which timers that are not needed are removed.
    prune_at: usize,
}

impl<T> TimerQueue<T> {
    const PRUNE_MIN: usize = 64;

    /// An empty queue of timers that run for `delay`.
    pub const fn new(delay: Duration) -> TimerQueue<T> {
        TimerQueue { delay, queue: VecDeque::new(), prune_at: TimerQueue::<T>::PRUNE_MIN }
    }

    /// Starts a timer. `now` must not be earlier than in the last call. `is_needed` tests whether an earlier timer is
    /// still needed: if at most `n` are needed at a time, the queue holds at most 64 + 2 `n` timers.
    pub fn start(&mut self, now: Time, item: T, is_needed: impl Fn(&T) -> bool) {
        if self.queue.len() >= self.prune_at {
            self.queue.retain(|(_, item)| is_needed(item));
            self.prune_at = TimerQueue::<T>::PRUNE_MIN + 2 * self.queue.len();
        }
        let ends_at = now + self.delay;
        debug_assert!(self.queue.back().is_none_or(|(last, _)| *last <= ends_at), "`now` should not go back");
        self.queue.push_back((ends_at, item));
    }

    /// When the next timer ends, whether it is needed or not.
    #[inline]
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.queue.front().map(|(ends_at, _)| *ends_at)
    }

    /// When the next needed timer ends. Removes the timers that would end before it.
    #[must_use]
    pub fn poll_needed_timeout(&mut self, is_needed: impl Fn(&T) -> bool) -> Option<Time> {
        while self.queue.front().is_some_and(|(_, item)| !is_needed(item)) {
            self.queue.pop_front();
        }
        self.poll_timeout()
    }

    /// Takes the item of the oldest timer that has ended, whether it is needed or not.
    #[inline]
    pub fn pop(&mut self, now: Time) -> Option<T> {
        if self.poll_timeout()? > now {
            return None;
        }
        self.queue.pop_front().map(|(_, item)| item)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const DELAY: u64 = 10;

    #[test]
    fn timer_ends_once_after_the_delay() {
        let mut timers = TimerQueue::new(Duration::from_nanos(DELAY));
        assert_eq!((timers.poll_timeout(), timers.pop(Time(u64::MAX))), (None, None));
        timers.start(Time(0), 'a', |_| true);
        timers.start(Time(3), 'b', |_| true);
        assert_eq!(
            (timers.poll_timeout(), timers.pop(Time(9)), timers.pop(Time(10))),
            (Some(Time(10)), None, Some('a'))
        );
        assert_eq!((timers.pop(Time(12)), timers.poll_needed_timeout(|item| *item != 'b')), (None, None));
    }

    proptest::proptest! {
        #[test]
        fn needed_timers_end_in_order_and_the_queue_is_bounded(
            drawn in proptest::collection::vec(0..40_u64, 1..2_000),
        ) {
            // Timer `n` is needed if `drawn[n]` is 0, about one in 40.
            let mut timers = TimerQueue::new(Duration::from_nanos(5_000));
            let is_needed = |n: &u64| drawn[*n as usize] == 0;
            let needed = drawn.iter().filter(|number| **number == 0).count();
            for n in 0..drawn.len() as u64 {
                timers.start(Time(n), n, is_needed);
                // Pruning begins at 64 entries, and then at twice the entries that are still needed.
                let length = timers.queue.len();
                assert!(
                    length <= 64 + 2 * needed,
                    "stale entries should be pruned: {length}, {needed} needed"
                );
            }
            let ended: Vec<u64> = core::iter::from_fn(|| timers.pop(Time(u64::MAX))).filter(is_needed).collect();
            assert!(
                ended.into_iter().eq((0..drawn.len() as u64).filter(is_needed)),
                "all needed timers should end, in order"
            );
        }
    }
}
