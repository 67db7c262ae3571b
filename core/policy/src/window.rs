//! A sliding window of reply latencies.
//!
//! Late replies are counted exactly, not estimated from buckets: p99 is over the SLA if more than one in a hundred
//! replies was late. The caller must also count requests that have waited for longer than the SLA; otherwise a server
//! that does not reply would look calm.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_transport::Time;

use crate::histogram::{BUCKETS, Histogram, bucket};

#[derive(Clone, Debug)]
struct Slice {
    counts: [u32; BUCKETS],
    counted: u32,
    late: u32,
}

const EMPTY: Slice = Slice { counts: [0; BUCKETS], counted: 0, late: 0 };

/// Recent replies, in slices. The last slice is the present, incomplete one, so the window covers up to one
/// slice less than its length.
#[derive(Clone, Debug)]
pub struct Window {
    sla: Duration,
    slice: Duration,
    slices: Vec<Slice>,
    /// The number of the present slice since time zero.
    present: u64,
    merged: Histogram,
    late: u64,
}

/// Maximum number of slices of a window.
pub const SLICES_MAX: usize = 100;

impl Window {
    /// A window of this length in slices of length `slice`, at least 1 ms; at most [`SLICES_MAX`] slices. Replies with
    /// a latency above `sla` are late.
    pub fn new(sla: Duration, length: Duration, slice: Duration) -> Window {
        let slice = slice.max(Duration::from_millis(1));
        let slices = usize::try_from(length.as_nanos() / slice.as_nanos()).unwrap_or(usize::MAX);
        let mut all = Vec::new();
        all.resize(slices.clamp(1, SLICES_MAX), EMPTY);
        Window { sla, slice, slices: all, present: 0, merged: Histogram::default(), late: 0 }
    }

    /// Records a reply with this latency.
    pub fn record(&mut self, now: Time, latency: Duration) {
        self.advance(now);
        let at = self.position(0);
        let (slice, bucket) = (&mut self.slices[at], bucket(latency));
        slice.counts[bucket] = slice.counts[bucket].saturating_add(1);
        slice.counted = slice.counted.saturating_add(1);
        self.merged.add(bucket, 1);
        if latency > self.sla {
            slice.late = slice.late.saturating_add(1);
            self.late += 1;
        }
    }

    /// Forgets slices that have left the window.
    pub fn advance(&mut self, now: Time) {
        let slice_ns = u64::try_from(self.slice.as_nanos()).unwrap_or(u64::MAX);
        let present = (now.as_nanos() / slice_ns).max(self.present);
        let passed = present - self.present;
        self.present = present;
        for back in 0..passed.min(self.slices.len() as u64) {
            let at = self.position(back);
            let slice = &mut self.slices[at];
            if slice.counted > 0 {
                self.merged.subtract(&slice.counts);
                self.late -= u64::from(slice.late);
                *slice = EMPTY;
            }
        }
    }

    /// Index of the slice that is `back` slices before the present one.
    #[expect(clippy::cast_possible_truncation, reason = "below the number of slices")]
    fn position(&self, back: u64) -> usize {
        (self.present.saturating_sub(back) % self.slices.len() as u64) as usize
    }

    /// Replies in the window.
    pub fn count(&self) -> u64 {
        self.merged.count()
    }

    /// Late replies in the window.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Replies and late replies of the present slice and of `slices` before it.
    pub fn recent(&self, slices: u64) -> (u64, u64) {
        (0..=slices.min(self.slices.len() as u64 - 1).min(self.present))
            .map(|back| &self.slices[self.position(back)])
            .fold((0, 0), |(count, late), slice| {
                (count + u64::from(slice.counted), late + u64::from(slice.late))
            })
    }

    /// Histogram of all replies in the window.
    pub fn merged(&self) -> &Histogram {
        &self.merged
    }

    /// The window's length: all its slices.
    pub fn length(&self) -> Duration {
        self.slice * u32::try_from(self.slices.len()).unwrap_or(u32::MAX)
    }

    /// Empties the window.
    pub fn clear(&mut self) {
        self.slices.fill(EMPTY);
        (self.merged, self.late) = (Histogram::default(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    fn window() -> Window {
        Window::new(MS, 1000 * MS, 100 * MS)
    }

    #[test]
    fn replies_leave_the_window_slice_by_slice() {
        let mut window = window();
        window.record(at(0), 5 * MS);
        window.record(at(150), MS);
        assert_eq!(
            (window.count(), window.late()),
            (2, 1),
            "two replies should be in the window, one of them late"
        );
        window.advance(at(999));
        assert_eq!((window.count(), window.late()), (2, 1));
        window.advance(at(1000));
        assert_eq!((window.count(), window.late()), (1, 0), "the first slice should have left the window");
        window.advance(at(900_000));
        assert_eq!((window.count(), window.merged().quantile(990)), (0, None), "the window should be empty");
        window.record(at(3), MS);
        assert_eq!(window.count(), 1, "a reply of an earlier time should count in the present slice");
    }

    #[test]
    fn reply_later_than_the_sla_by_a_nanosecond_is_late() {
        let mut window = window();
        for _ in 0..99 {
            window.record(at(5), MS);
        }
        window.record(at(5), MS + Duration::from_nanos(1));
        assert_eq!((window.count(), window.late()), (100, 1), "one reply of 100 should be late");
    }

    #[test]
    fn recent_slices_are_counted_and_the_length_is_bounded() {
        let mut window = window();
        window.record(at(10), 2 * MS);
        window.record(at(110), MS);
        window.record(at(210), 2 * MS);
        assert_eq!((window.recent(0), window.recent(1), window.recent(99)), ((1, 1), (2, 1), (3, 2)));
        assert_eq!(window.length(), 1000 * MS);
        window.clear();
        assert_eq!(
            (window.count(), window.late(), window.recent(9)),
            (0, 0, (0, 0)),
            "a cleared window should be empty"
        );
        let longest = Window::new(MS, Duration::MAX, Duration::ZERO);
        assert_eq!(longest.length(), MS * 100, "the window should have at most 100 slices");
    }
}
