//! The timers of clients' connections: one table with a queue for each kind, because all timers of a kind run for the same
//! time.

use core::time::Duration;

use spillway_parts::Delays;
use spillway_transport::{Conn, Time};

use crate::config::Timeouts;

/// A server that keeps its replies learns after this time at the latest what a client has acknowledged.
const TELL_AFTER: Duration = Duration::from_millis(20);
/// How often a client whose record is incomplete is looked at. A link ends once a record is incomplete for 10 s at a look, so
/// after 15 s at most.
const RECORD_LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often a client that is not read for a time is looked at.
const REST_LOOK_EVERY: Duration = Duration::from_millis(100);

/// What is to be done with a connection when its time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// The server is to learn what a plain client has acknowledged.
    Acknowledge,
    /// A leaving client has to have made progress.
    Linger,
    /// A library client has to have authenticated.
    Handshake,
    /// The rest of a library client's record has to have come.
    Record,
    /// A library client that is not read because of what it sends may be read again.
    Rest,
    /// A load balancer has to have sent its PROXY header.
    ProxyHeader,
}

impl Timer {
    /// In the order in which timers that are due at once are handled.
    pub(crate) const ALL: [Timer; 6] =
        [Timer::Acknowledge, Timer::Linger, Timer::Handshake, Timer::Record, Timer::Rest, Timer::ProxyHeader];

    fn delay(self, timeouts: &Timeouts) -> Duration {
        match self {
            Timer::Acknowledge => TELL_AFTER,
            Timer::Linger => timeouts.linger,
            Timer::Handshake => timeouts.handshake,
            Timer::Record => RECORD_LOOK_EVERY,
            Timer::Rest => REST_LOOK_EVERY,
            Timer::ProxyHeader => timeouts.proxy_header,
        }
    }
}

/// All timers of clients' connections.
#[derive(Debug)]
pub(crate) struct Timers {
    /// In the order of [`Timer::ALL`].
    queues: [Delays<Conn>; Timer::ALL.len()],
}

impl Timers {
    pub(crate) fn new(timeouts: &Timeouts) -> Timers {
        Timers { queues: Timer::ALL.map(|timer| Delays::new(timer.delay(timeouts))) }
    }

    /// Starts a timer. `is_wanted` says which other timers of this kind still have a purpose.
    pub(crate) fn start(&mut self, timer: Timer, now: Time, conn: Conn, is_wanted: impl Fn(Conn) -> bool) {
        self.queues[timer as usize].start(now, conn, |conn| is_wanted(*conn));
    }

    /// When the next timer of any kind ends.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.queues.iter().filter_map(Delays::poll_timeout).min()
    }

    /// A connection whose timer of this kind has ended. Its holder says whether the timer still has a purpose.
    pub(crate) fn pop(&mut self, timer: Timer, now: Time) -> Option<Conn> {
        self.queues[timer as usize].pop(now)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn each_kind_has_its_own_time() {
        let mut timers = Timers::new(&Timeouts::default());
        assert_eq!(timers.poll_timeout(), None);
        let conn = |slot| Conn { slot, generation: 1 };
        for (slot, timer) in (0..).zip(Timer::ALL) {
            timers.start(timer, Time(0), conn(slot), |_| true);
        }
        let at = |time: Duration| Time(0) + time;
        assert_eq!(timers.poll_timeout(), Some(at(TELL_AFTER)));
        let second = at(Duration::from_secs(1));
        let due: Vec<Option<Conn>> = Timer::ALL.map(|timer| timers.pop(timer, second)).into();
        assert_eq!(due, [Some(conn(0)), None, None, None, Some(conn(4)), None]);
        assert_eq!(timers.poll_timeout(), Some(at(Timeouts::default().handshake)));
        assert_eq!(timers.pop(Timer::Linger, at(Timeouts::default().linger)), Some(conn(1)));
    }
}
