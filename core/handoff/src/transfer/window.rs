//! How many parts of states may be in flight to one server, and how long their acknowledgements take. All moves to a server
//! share both: its buffer for datagrams is one, and a burst of the states of many moves would overflow it.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;

use spillway_transport::Time;

/// Number of parts that may be in flight: at the beginning, at least and at most. Linux's default limit for the buffer of a
/// socket holds about 90 parts, and twice as many if a program asks for more.
pub(crate) const WINDOW: usize = 64;
pub(crate) const WINDOW_MIN: usize = 4;
pub(crate) const WINDOW_MAX: usize = 256;
/// Maximum of the first timeout, as a multiple of [`MoveTimes::first_interval`](crate::MoveTimes): the five attempts of a part
/// end before the source's copy could be missed.
const TIMEOUT_MAX: u32 = 4;

#[derive(Debug)]
struct Shared {
    parts_max: AtomicUsize,
    in_flight: AtomicUsize,
    /// The window is not halved again before this time, in nanoseconds.
    halved_until: AtomicU64,
    /// Mean and variation of the time until an acknowledgement (RFC 6298 §2), in nanoseconds. A mean of 0: not measured.
    srtt: AtomicU64,
    rttvar: AtomicU64,
}

/// The window to one server. Clones share it. An agent runs in one thread: the counters are atomic only so that the agent can
/// change its thread.
#[derive(Clone, Debug)]
pub(crate) struct Window(Arc<Shared>);

impl Window {
    pub(crate) fn new() -> Window {
        Window(Arc::new(Shared {
            parts_max: AtomicUsize::new(WINDOW),
            in_flight: AtomicUsize::new(0),
            halved_until: AtomicU64::new(0),
            srtt: AtomicU64::new(0),
            rttvar: AtomicU64::new(0),
        }))
    }

    pub(crate) fn has_room(&self) -> bool {
        self.in_flight() < self.0.parts_max.load(Ordering::Relaxed)
    }

    /// The number of parts in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.0.in_flight.load(Ordering::Relaxed)
    }

    /// A part was sent for the first time.
    pub(crate) fn add(&self) {
        self.0.in_flight.store(self.in_flight() + 1, Ordering::Relaxed);
    }

    /// Parts are not in flight any more: they were acknowledged, or their move has ended.
    pub(crate) fn remove(&self, parts: usize) {
        debug_assert!(parts <= self.in_flight(), "parts leave the window once");
        self.0.in_flight.store(self.in_flight().saturating_sub(parts), Ordering::Relaxed);
    }

    /// Parts were acknowledged: the window grows by their number.
    pub(crate) fn grow(&self, parts: usize) {
        let parts_max = self.0.parts_max.load(Ordering::Relaxed) + parts;
        self.0.parts_max.store(parts_max.min(WINDOW_MAX), Ordering::Relaxed);
    }

    /// A part was lost: halves the window, at most once in the time `timeout`.
    pub(crate) fn halve(&self, now: Time, timeout: Duration) {
        if now >= Time(self.0.halved_until.load(Ordering::Relaxed)) {
            let half = self.0.parts_max.load(Ordering::Relaxed) / 2;
            self.0.parts_max.store(half.max(WINDOW_MIN), Ordering::Relaxed);
            self.0.halved_until.store((now + timeout).as_nanos(), Ordering::Relaxed);
        }
    }

    /// A part that was sent once was acknowledged after this time (RFC 6298 §2).
    pub(crate) fn measured(&self, round_trip: Duration) {
        let sample = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX).max(1);
        let (srtt, rttvar) = (self.0.srtt.load(Ordering::Relaxed), self.0.rttvar.load(Ordering::Relaxed));
        let (srtt, rttvar) = match srtt {
            0 => (sample, sample / 2),
            _ => (srtt - srtt / 8 + sample / 8, rttvar - rttvar / 4 + srtt.abs_diff(sample) / 4),
        };
        self.0.srtt.store(srtt.max(1), Ordering::Relaxed);
        self.0.rttvar.store(rttvar, Ordering::Relaxed);
    }

    /// Time after which a part counts as lost: `min`, or up to four times as long if acknowledgements take longer, because the
    /// target or the network is loaded.
    pub(crate) fn timeout(&self, min: Duration) -> Duration {
        let (srtt, rttvar) = (self.0.srtt.load(Ordering::Relaxed), self.0.rttvar.load(Ordering::Relaxed));
        Duration::from_nanos(srtt.saturating_add(rttvar.saturating_mul(4))).clamp(min, min * TIMEOUT_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_timeout_follows_the_round_trips_within_its_bounds() {
        let window = Window::new();
        assert_eq!(window.timeout(MS), MS, "nothing was measured");
        window.measured(MS / 20);
        assert_eq!(window.timeout(MS), MS);
        for _ in 0..40 {
            window.measured(MS * 2);
        }
        let timeout = window.timeout(MS);
        assert!(timeout > MS * 19 / 10 && timeout < MS * 4, "{timeout:?}");
        window.measured(MS * 50);
        assert_eq!(window.timeout(MS), MS * 4);
        for _ in 0..100 {
            window.measured(MS / 20);
        }
        assert_eq!(window.timeout(MS), MS);
    }

    #[test]
    fn a_window_grows_with_acknowledgements_and_is_halved_once_in_a_timeout() {
        let window = Window::new();
        let room = |window: &Window| {
            let mut room = 0;
            while window.has_room() {
                window.add();
                room += 1;
            }
            window.remove(room);
            room
        };
        assert_eq!(room(&window), WINDOW);
        window.grow(10);
        assert_eq!(room(&window), WINDOW + 10);
        window.grow(10 * WINDOW_MAX);
        assert_eq!(room(&window), WINDOW_MAX);
        window.halve(Time(5), MS);
        window.halve(Time(6), MS);
        assert_eq!(room(&window), WINDOW_MAX / 2);
        for ms in 1..20 {
            window.halve(Time(5) + MS * ms, MS);
        }
        assert_eq!(room(&window), WINDOW_MIN);
    }
}
