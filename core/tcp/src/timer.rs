//! A connection's timers in one table, which gives the next wake-up time and the expired timers.
//!
//! The connection's parts (acknowledgements, recovery, persist) set and stop timers; only `Connection::handle_timeout`
//! acts on expired ones. All connections share the [wheel](crate::timers), in which each connection has one deadline:
//! [`Timers::next`].

use spillway_transport::Time;

/// The timers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// The delayed acknowledgement (RFC 9293 §3.8.6.3).
    Acknowledge,
    /// Repeats the last acknowledgement, which may have been lost.
    Repeat,
    /// Marks a segment lost when segments sent after it have arrived (RFC 8985 §6.2).
    Reordering,
    /// A tail loss probe (RFC 8985 §7.2).
    Probe,
    /// The retransmission timeout (RFC 6298 §5).
    Retransmission,
    /// A probe of the peer's closed window, or the SWS override of a small one (RFC 9293 §3.8.6.1, §3.8.6.2.1).
    Persist,
    /// A keep-alive probe, after the peer was silent (RFC 9293 §3.8.4).
    KeepAlive,
    /// The limit for establishing the connection.
    Opening,
}

impl Timer {
    /// All timers, in the order in which timers that expire together are handled.
    pub const VALUES: [Timer; 8] = [
        Timer::Acknowledge,
        Timer::Repeat,
        Timer::Reordering,
        Timer::Probe,
        Timer::Retransmission,
        Timer::Persist,
        Timer::KeepAlive,
        Timer::Opening,
    ];
}

/// Marks a timer that does not run.
const NEVER: Time = Time(u64::MAX);

/// The expiry times of one connection's timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// Indexed by [`Timer`].
    expiry: [Time; Timer::VALUES.len()],
}

impl Default for Timers {
    fn default() -> Timers {
        Timers { expiry: [NEVER; Timer::VALUES.len()] }
    }
}

impl Timers {
    /// Starts a timer, or moves it. `Time(u64::MAX)` stops it.
    #[inline]
    pub fn set(&mut self, timer: Timer, at: Time) {
        self.expiry[timer as usize] = at;
    }

    /// Stops a timer; no effect if it does not run.
    #[inline]
    pub fn stop(&mut self, timer: Timer) {
        self.expiry[timer as usize] = NEVER;
    }

    /// When a timer expires; `None` if it does not run.
    #[inline]
    pub fn get(&self, timer: Timer) -> Option<Time> {
        Some(self.expiry[timer as usize]).filter(|at| *at < NEVER)
    }

    /// Whether a timer runs.
    #[inline]
    pub fn is_set(&self, timer: Timer) -> bool {
        self.expiry[timer as usize] < NEVER
    }

    /// Whether a timer has expired. It stays expired until it is stopped or set again.
    #[inline]
    pub fn is_expired(&self, timer: Timer, now: Time) -> bool {
        self.is_set(timer) && self.expiry[timer as usize] <= now
    }

    /// Whether `one` expires before `other`.
    #[inline]
    pub fn is_before(&self, one: Timer, other: Timer) -> bool {
        self.expiry[one as usize] < self.expiry[other as usize]
    }

    /// When the first timer expires; the end of time if none runs.
    #[inline]
    pub fn next(&self) -> Time {
        self.expiry.iter().copied().fold(NEVER, Time::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_timer_has_its_own_entry() {
        let mut timers = Timers::default();
        for (index, timer) in Timer::VALUES.into_iter().enumerate() {
            assert_eq!(timer as usize, index, "`VALUES` should be in the order of the enum");
            timers.set(timer, Time(index as u64));
        }
        let expiry = Timer::VALUES.map(|timer| timers.get(timer));
        assert_eq!(expiry, core::array::from_fn(|index| Some(Time(index as u64))));
    }

    #[test]
    fn an_expired_timer_stays_expired_until_it_is_stopped() {
        let mut timers = Timers::default();
        timers.set(Timer::Probe, Time(7));
        timers.set(Timer::KeepAlive, Time(9));
        assert_eq!(timers.next(), Time(7));
        assert!(
            !timers.is_expired(Timer::Probe, Time(6)) && timers.is_expired(Timer::Probe, Time(7)),
            "a timer should expire at its time"
        );
        timers.stop(Timer::Probe);
        assert_eq!((timers.next(), timers.get(Timer::Probe)), (Time(9), None));
    }

    #[test]
    fn setting_the_end_of_time_stops_a_timer() {
        let mut timers = Timers::default();
        assert_eq!(timers.next(), Time(u64::MAX));
        timers.set(Timer::Opening, Time(u64::MAX));
        assert!(
            !timers.is_set(Timer::Opening) && !timers.is_expired(Timer::Opening, Time(u64::MAX)),
            "a timer at the end of time should be stopped"
        );
    }
}
