//! Timers of clients' connections: one queue per kind, because all timers of a kind have the same duration.

use core::time::Duration;

use spillway_parts::TimerQueue;
use spillway_transport::{Conn, Time};

use crate::config::Timeouts;

/// Maximum delay of acknowledgements to a server that keeps its replies.
const ACKNOWLEDGE_DELAY: Duration = Duration::from_millis(20);
/// Interval of checks for incomplete records. A record that stays incomplete is given up 10 to 15 s after its first
/// byte.
const RECORD_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of checks whether a throttled client may be read again.
const THROTTLE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// Send the server what a plain client has acknowledged.
    Acknowledge,
    /// Reset a lingering client that made no progress.
    Linger,
    /// Reset a library client that has not authenticated.
    Handshake,
    /// Reset a library client whose record is still incomplete.
    Record,
    /// Check whether a throttled library client may be read again.
    Throttle,
    /// Reset a load balancer's connection without a PROXY header.
    ProxyHeader,
}

impl Timer {
    /// All kinds, in the order in which timers that are due together are handled.
    pub(crate) const ALL: [Timer; 6] = [
        Timer::Acknowledge,
        Timer::Linger,
        Timer::Handshake,
        Timer::Record,
        Timer::Throttle,
        Timer::ProxyHeader,
    ];

    fn delay(self, timeouts: &Timeouts) -> Duration {
        match self {
            Timer::Acknowledge => ACKNOWLEDGE_DELAY,
            Timer::Linger => timeouts.linger,
            Timer::Handshake => timeouts.handshake,
            Timer::Record => RECORD_CHECK_INTERVAL,
            Timer::Throttle => THROTTLE_CHECK_INTERVAL,
            Timer::ProxyHeader => timeouts.proxy_header,
        }
    }
}

/// All timers of clients' connections.
#[derive(Debug)]
pub(crate) struct Timers {
    /// Queues in the order of [`Timer::ALL`].
    queues: [TimerQueue<Conn>; Timer::ALL.len()],
}

impl Timers {
    pub(crate) fn new(timeouts: &Timeouts) -> Timers {
        Timers { queues: Timer::ALL.map(|timer| TimerQueue::new(timer.delay(timeouts))) }
    }

    /// Starts a timer. The queue calls `is_needed` for its other connections, and drops timers that are not needed any
    /// more.
    pub(crate) fn start(&mut self, timer: Timer, now: Time, conn: Conn, is_needed: impl Fn(Conn) -> bool) {
        self.queues[timer as usize].start(now, conn, |conn| is_needed(*conn));
    }

    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.queues.iter().filter_map(TimerQueue::poll_timeout).min()
    }

    /// Removes an expired timer of this kind. The caller must check whether the timer is still needed.
    pub(crate) fn pop(&mut self, timer: Timer, now: Time) -> Option<Conn> {
        self.queues[timer as usize].pop(now)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn each_kind_of_timer_has_its_own_duration() {
        let mut timers = Timers::new(&Timeouts::default());
        assert_eq!(timers.poll_timeout(), None);
        let conn = |slot| Conn { slot, generation: 1 };
        for (slot, timer) in (0..).zip(Timer::ALL) {
            timers.start(timer, Time(0), conn(slot), |_| true);
        }
        let after = |time: Duration| Time(0) + time;
        assert_eq!(timers.poll_timeout(), Some(after(ACKNOWLEDGE_DELAY)));
        let second = after(Duration::from_secs(1));
        let due: Vec<Option<Conn>> = Timer::ALL.map(|timer| timers.pop(timer, second)).into();
        assert_eq!(due, [Some(conn(0)), None, None, None, Some(conn(4)), None]);
        assert_eq!(timers.poll_timeout(), Some(after(Timeouts::default().handshake)));
        assert_eq!(timers.pop(Timer::Linger, after(Timeouts::default().linger)), Some(conn(1)));
    }
}
