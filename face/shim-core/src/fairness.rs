//! Fairness between helped and direct connections on one event loop.
//!
//! Virtual events cost no system call, so a loop with many of them would never poll its real descriptors. Therefore the
//! kernel is polled after [`DIRECT_WAIT`] at the latest, and a call returns at most the number of virtual events that
//! the application handles until then, by its measured time for each event.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use spillway_transport::Time;

/// Longest time that a direct connection, or the next batch, waits behind virtual events, besides the time of
/// [`EVENTS_PER_CALL_MIN`] events.
pub const DIRECT_WAIT: Duration = Duration::from_micros(200);

/// Maximum number of calls that return virtual events before the kernel is polled.
pub const CALLS_PER_POLL: u32 = 8;

/// Virtual events that one call may return even to a slow application.
pub const EVENTS_PER_CALL_MIN: usize = 4;

/// Virtual events that one call returns at most.
pub const EVENTS_PER_CALL_MAX: usize = 128;

/// When the kernel was polled, and the application's time for each event. If several threads share a set, the times are
/// approximate, and the bounds on numbers of calls and events still hold.
pub(crate) struct Turns {
    calls: AtomicU32,
    /// Number of virtual events that the last call returned.
    returned: AtomicU32,
    /// Times of the last call and of the last poll of the kernel, in nanoseconds.
    returned_at: AtomicU64,
    polled_at: AtomicU64,
    /// The application's time for each event, in nanoseconds.
    event_ns: AtomicU32,
}

impl Turns {
    pub(crate) const fn new() -> Turns {
        Turns {
            calls: AtomicU32::new(0),
            returned: AtomicU32::new(0),
            returned_at: AtomicU64::new(0),
            polled_at: AtomicU64::new(0),
            event_ns: AtomicU32::new(1000),
        }
    }

    /// Measures the application's time for each event. Call at the start of a wait, when the application has handled
    /// the events of the last call.
    pub(crate) fn measure_application(&self, now: Time) {
        let returned = self.returned.load(Ordering::Relaxed);
        if returned > 0 {
            let spent = now.as_nanos().saturating_sub(self.returned_at.load(Ordering::Relaxed));
            let each = u32::try_from(spent / u64::from(returned)).unwrap_or(u32::MAX);
            self.event_ns.store(each.max(1), Ordering::Relaxed);
            self.returned.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the kernel must be polled now. Counts this call.
    pub(crate) fn is_poll_due(&self, now: Time) -> bool {
        let calls = self.calls.load(Ordering::Relaxed) + 1;
        self.calls.store(calls, Ordering::Relaxed);
        calls >= CALLS_PER_POLL || now.since(Time(self.polled_at.load(Ordering::Relaxed))) >= DIRECT_WAIT
    }

    pub(crate) fn record_poll(&self, now: Time) {
        self.calls.store(0, Ordering::Relaxed);
        self.polled_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// The number of virtual events that may be returned now.
    pub(crate) fn limit(&self, now: Time) -> usize {
        let waited = now.since(Time(self.polled_at.load(Ordering::Relaxed)));
        let left = DIRECT_WAIT.saturating_sub(waited).as_nanos() as u64; // at most DIRECT_WAIT
        let events = left / u64::from(self.event_ns.load(Ordering::Relaxed).max(1));
        usize::try_from(events).unwrap_or(usize::MAX).clamp(EVENTS_PER_CALL_MIN, EVENTS_PER_CALL_MAX)
    }

    pub(crate) fn record_returned(&self, events: usize, now: Time) {
        self.returned.store(u32::try_from(events).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.returned_at.store(now.as_nanos(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(micros: u64) -> Time {
        Time(1_000_000_000 + micros * 1000)
    }

    #[test]
    fn kernel_is_polled_in_time_at_any_speed_of_the_application() {
        for event_us in [0, 1, 5, 30, 1000] {
            let turns = Turns::new();
            turns.record_poll(micros(0));
            let mut now = 0;
            let (mut waited, mut calls) = (0, 0);
            // From the second poll on, the application's time for each event is measured.
            for _ in 0..1000 {
                turns.measure_application(micros(now));
                if turns.is_poll_due(micros(now)) {
                    turns.record_poll(micros(now));
                    (waited, calls) = (0, 0);
                }
                let events = turns.limit(micros(now));
                assert!((EVENTS_PER_CALL_MIN..=EVENTS_PER_CALL_MAX).contains(&events));
                turns.record_returned(events, micros(now));
                (now, waited, calls) = (now + events as u64 * event_us, waited + events as u64, calls + 1);
                let bound = DIRECT_WAIT.as_micros() as u64 + EVENTS_PER_CALL_MIN as u64 * event_us;
                assert!(
                    now < 1000 * event_us || waited * event_us <= bound,
                    "{waited} events of {event_us} us each should take at most {bound} us"
                );
                assert!(calls <= CALLS_PER_POLL);
            }
        }
    }
}
