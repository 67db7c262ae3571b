use alloc::collections::VecDeque;
use core::time::Duration;

use spillway_transport::Time;

/// Timers of one duration, each with an item. A timer cannot be stopped: when it ends, the caller checks whether it is
/// still needed. Timers that are not needed are removed when the queue has become twice as long as the number of needed
/// ones. Methods take constant time, `start` on average.
#[derive(Debug)]
pub struct Delays<T> {
    delay: Duration,
    queue: VecDeque<(Time, T)>,
    /// Length of the queue at which timers that are not needed are removed.
    prune_at: usize,
}

impl<T> Delays<T> {
    const PRUNE_MIN: usize = 64;

    /// An empty queue of timers that run for `delay`.
    pub const fn new(delay: Duration) -> Delays<T> {
        Delays { delay, queue: VecDeque::new(), prune_at: Delays::<T>::PRUNE_MIN }
    }

    /// Starts a timer. `now` must not be earlier than that of the last start. `is_wanted` tests whether another timer
    /// is still needed: if at most `n` are needed at a time, the queue holds at most 64 + 2 `n` timers.
    pub fn start(&mut self, now: Time, item: T, is_wanted: impl Fn(&T) -> bool) {
        if self.queue.len() >= self.prune_at {
            self.queue.retain(|(_, item)| is_wanted(item));
            self.prune_at = Delays::<T>::PRUNE_MIN + 2 * self.queue.len();
        }
        let at = now + self.delay;
        debug_assert!(self.queue.back().is_none_or(|(last, _)| *last <= at), "time does not go back");
        self.queue.push_back((at, item));
    }

    /// When the next timer ends, including timers that are not needed.
    #[inline]
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.queue.front().map(|(at, _)| *at)
    }

    /// When the next needed timer ends. Removes the timers before it.
    #[must_use]
    pub fn poll_needed_timeout(&mut self, is_wanted: impl Fn(&T) -> bool) -> Option<Time> {
        while self.queue.front().is_some_and(|(_, item)| !is_wanted(item)) {
            self.queue.pop_front();
        }
        self.poll_timeout()
    }

    /// Takes the item of a timer that has ended, oldest first, including timers that are not needed.
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
    fn a_timer_ends_once_after_its_delay() {
        let mut delays = Delays::new(Duration::from_nanos(DELAY));
        assert_eq!((delays.poll_timeout(), delays.pop(Time(u64::MAX))), (None, None));
        delays.start(Time(0), 'a', |_| true);
        delays.start(Time(3), 'b', |_| true);
        assert_eq!(
            (delays.poll_timeout(), delays.pop(Time(9)), delays.pop(Time(10))),
            (Some(Time(10)), None, Some('a'))
        );
        assert_eq!((delays.pop(Time(12)), delays.poll_needed_timeout(|item| *item != 'b')), (None, None));
    }

    proptest::proptest! {
        #[test]
        fn needed_timers_end_in_order_and_the_queue_is_bounded(
            wanted in proptest::collection::vec(0..40_u64, 1..2_000),
        ) {
            // Timer `n` is needed if `wanted[n]` is 0.
            let mut delays = Delays::new(Duration::from_nanos(5_000));
            let is_wanted = |n: &u64| wanted[*n as usize] == 0;
            let many = wanted.iter().filter(|drawn| **drawn == 0).count();
            for n in 0..wanted.len() as u64 {
                delays.start(Time(n), n, is_wanted);
                assert!(delays.queue.len() <= 64 + 2 * many, "{}", delays.queue.len());
            }
            let ended: Vec<u64> = core::iter::from_fn(|| delays.pop(Time(u64::MAX))).filter(is_wanted).collect();
            assert!(ended.into_iter().eq((0..wanted.len() as u64).filter(is_wanted)));
        }
    }
}
