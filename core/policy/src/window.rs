//! A sliding window of reply latencies.
//!
//! Whether p99 is over the SLA is counted, not read from buckets: it is when more than one in a hundred was late. What
//! still waits is late as soon as it has waited for longer than the SLA; otherwise a server that answers nothing would
//! look calm.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_transport::Time;

use crate::histogram::{BUCKETS, Histogram, bucket};

/// What one slice of time saw.
#[derive(Clone, Debug)]
struct Slice {
    counts: [u32; BUCKETS],
    counted: u32,
    late: u32,
}

const EMPTY: Slice = Slice { counts: [0; BUCKETS], counted: 0, late: 0 };

/// Replies of the last while, in slices. The present slice is one of them, so that the window covers between one slice
/// less than its length, and its length.
#[derive(Clone, Debug)]
pub struct Window {
    sla: Duration,
    slice: Duration,
    slices: Vec<Slice>,
    /// The present slice, counted from the beginning of time.
    present: u64,
    merged: Histogram,
    late: u64,
}

/// Slices of a window, at most.
pub const SLICES_MAX: usize = 100;

impl Window {
    /// A window of this length in slices of that; lengths of nothing count as 1 ms, and slices are at most
    /// [`SLICES_MAX`]. Replies after more than `sla` are late.
    pub fn new(sla: Duration, length: Duration, slice: Duration) -> Window {
        let slice = slice.max(Duration::from_millis(1));
        let slices = usize::try_from(length.as_nanos() / slice.as_nanos()).unwrap_or(usize::MAX);
        let mut all = Vec::new();
        all.resize(slices.clamp(1, SLICES_MAX), EMPTY);
        Window { sla, slice, slices: all, present: 0, merged: Histogram::default(), late: 0 }
    }

    /// A reply came after so long.
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

    /// Forgets what is too old.
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

    /// Where the slice is that was the present one so many slices ago.
    #[expect(clippy::cast_possible_truncation, reason = "below the number of slices")]
    fn position(&self, back: u64) -> usize {
        (self.present.saturating_sub(back) % self.slices.len() as u64) as usize
    }

    /// Replies counted.
    pub fn count(&self) -> u64 {
        self.merged.count()
    }

    /// Of those, late.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Replies, and late ones, of this slice and so many before it.
    pub fn recent(&self, slices: u64) -> (u64, u64) {
        (0..=slices.min(self.slices.len() as u64 - 1).min(self.present))
            .map(|back| &self.slices[self.position(back)])
            .fold((0, 0), |(count, late), slice| {
                (count + u64::from(slice.counted), late + u64::from(slice.late))
            })
    }

    /// All of them in one.
    pub fn merged(&self) -> &Histogram {
        &self.merged
    }

    /// What the window's length is: that of all its slices.
    pub fn length(&self) -> Duration {
        self.slice * u32::try_from(self.slices.len()).unwrap_or(u32::MAX)
    }

    /// Nothing was counted.
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
    fn what_is_a_window_old_is_forgotten_slice_by_slice() {
        let mut window = window();
        window.record(at(0), 5 * MS);
        window.record(at(150), MS);
        assert_eq!((window.count(), window.late()), (2, 1));
        window.advance(at(999));
        assert_eq!((window.count(), window.late()), (2, 1));
        window.advance(at(1000));
        assert_eq!((window.count(), window.late()), (1, 0), "the first slice has left");
        window.advance(at(900_000));
        assert_eq!((window.count(), window.merged().quantile(990)), (0, None));
        window.record(at(3), MS);
        assert_eq!(window.count(), 1, "time that goes back is the present");
    }

    #[test]
    fn late_is_exact_however_close_to_the_sla() {
        let mut window = window();
        for _ in 0..99 {
            window.record(at(5), MS);
        }
        window.record(at(5), MS + Duration::from_nanos(1));
        assert_eq!((window.count(), window.late()), (100, 1));
    }

    #[test]
    fn recent_slices_and_length() {
        let mut window = window();
        window.record(at(10), 2 * MS);
        window.record(at(110), MS);
        window.record(at(210), 2 * MS);
        assert_eq!((window.recent(0), window.recent(1), window.recent(99)), ((1, 1), (2, 1), (3, 2)));
        assert_eq!(window.length(), 1000 * MS);
        window.clear();
        assert_eq!((window.count(), window.late(), window.recent(9)), (0, 0, (0, 0)));
        let most = Window::new(MS, Duration::MAX, Duration::ZERO);
        assert_eq!(most.length(), MS * 100, "fixed memory");
    }
}
