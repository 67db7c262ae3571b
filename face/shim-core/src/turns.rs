//! Fairness between helped and direct connections on one event loop.
//!
//! Virtual events cost no system call, so a loop that is busy with them would never poll its real descriptors. The
//! kernel is polled after [`DIRECT_WAIT`] at the latest, and a call returns no more virtual events than the
//! application, at its measured speed, handles until then.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use spillway_transport::Time;

/// Longest time that a direct connection, or the next batch, waits behind virtual events, besides the time of
/// [`EVENTS_PER_CALL_MIN`] events.
pub const DIRECT_WAIT: Duration = Duration::from_micros(200);

/// Calls that may return virtual events before the kernel is polled.
pub const CALLS_PER_LOOK: u32 = 8;

/// Virtual events that one call may return however slow the application is with each.
pub const EVENTS_PER_CALL_MIN: usize = 4;

/// Virtual events that one call returns at most.
pub const EVENTS_PER_CALL_MAX: usize = 128;

/// When the kernel was polled, and how fast the application is. Usually used by one thread; when several share a set,
/// the figures are approximate and the bounds on numbers hold.
pub(crate) struct Turns {
    calls: AtomicU32,
    /// Virtual events that the last call returned.
    handed: AtomicU32,
    /// Times of that call and of the last poll of the kernel, in nanoseconds.
    handed_at: AtomicU64,
    looked_at: AtomicU64,
    /// The application's time for each event, in nanoseconds.
    event_ns: AtomicU32,
}

impl Turns {
    pub(crate) const fn new() -> Turns {
        Turns {
            calls: AtomicU32::new(0),
            handed: AtomicU32::new(0),
            handed_at: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
            event_ns: AtomicU32::new(1000),
        }
    }

    /// The application asks for events, so it has handled those of the last call: measures its time for each.
    pub(crate) fn asked(&self, now: Time) {
        let handed = self.handed.load(Ordering::Relaxed);
        if handed > 0 {
            let spent = now.as_nanos().saturating_sub(self.handed_at.load(Ordering::Relaxed));
            let each = u32::try_from(spent / u64::from(handed)).unwrap_or(u32::MAX);
            self.event_ns.store(each.max(1), Ordering::Relaxed);
            self.handed.store(0, Ordering::Relaxed);
        }
    }

    /// Whether direct connections, or the next batch, have waited long enough. Counts this call.
    pub(crate) fn is_look_due(&self, now: Time) -> bool {
        let calls = self.calls.load(Ordering::Relaxed) + 1;
        self.calls.store(calls, Ordering::Relaxed);
        calls >= CALLS_PER_LOOK || now.since(Time(self.looked_at.load(Ordering::Relaxed))) >= DIRECT_WAIT
    }

    pub(crate) fn looked(&self, now: Time) {
        self.calls.store(0, Ordering::Relaxed);
        self.looked_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// The number of virtual events that may be returned now.
    pub(crate) fn limit(&self, now: Time) -> usize {
        let waited = now.since(Time(self.looked_at.load(Ordering::Relaxed)));
        let left = DIRECT_WAIT.saturating_sub(waited).as_nanos() as u64; // at most DIRECT_WAIT
        let events = left / u64::from(self.event_ns.load(Ordering::Relaxed).max(1));
        usize::try_from(events).unwrap_or(usize::MAX).clamp(EVENTS_PER_CALL_MIN, EVENTS_PER_CALL_MAX)
    }

    pub(crate) fn handed(&self, events: usize, now: Time) {
        self.handed.store(u32::try_from(events).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.handed_at.store(now.as_nanos(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(micros: u64) -> Time {
        Time(1_000_000_000 + micros * 1000)
    }

    #[test]
    fn the_kernel_is_looked_at_in_time_whatever_the_application_takes() {
        for event_us in [0, 1, 5, 30, 1000] {
            let turns = Turns::new();
            turns.looked(micros(0));
            let mut now = 0;
            let (mut waited, mut calls) = (0, 0);
            // From the second poll on, the application's speed is known.
            for _ in 0..1000 {
                turns.asked(micros(now));
                if turns.is_look_due(micros(now)) {
                    turns.looked(micros(now));
                    (waited, calls) = (0, 0);
                }
                let events = turns.limit(micros(now));
                assert!((EVENTS_PER_CALL_MIN..=EVENTS_PER_CALL_MAX).contains(&events));
                turns.handed(events, micros(now));
                (now, waited, calls) = (now + events as u64 * event_us, waited + events as u64, calls + 1);
                let bound = DIRECT_WAIT.as_micros() as u64 + EVENTS_PER_CALL_MIN as u64 * event_us;
                assert!(now < 1000 * event_us || waited * event_us <= bound, "{waited} of {event_us} us");
                assert!(calls <= CALLS_PER_LOOK);
            }
        }
    }
}
