//! Decides from a thread's rate of frames whether deferred interrupts would save wake-ups.

use std::time::Duration;

use spillway_transport::Time;

/// Minimum time over which frames are counted before a decision.
const WINDOW: Duration = Duration::from_millis(10);
/// Mean frames in an interval at or above which interrupts are deferred: a timer replaces two or more.
const DEFER_FROM: u64 = 2;
/// Mean frames in an interval below which the deferral ends: a timer replaces less than one interrupt.
const RESUME_BELOW: u64 = 1;

/// Compares a thread's rate of frames with the interval of deferred interrupts.
#[derive(Debug)]
pub(super) struct FrameRate {
    interval: Duration,
    is_high: bool,
    /// Start of the present window: frames received until then, and the time.
    began: (u64, Time),
}

impl FrameRate {
    /// `interval`: time between two polls while interrupts are deferred.
    pub fn new(interval: Duration) -> FrameRate {
        FrameRate { interval, is_high: false, began: (0, Time::ZERO) }
    }

    /// Whether interrupts should be deferred. `received`: frames since the thread's start. Call it each turn.
    pub fn is_high(&mut self, now: Time, received: u64) -> bool {
        let (before, since) = self.began;
        let window = now.since(since);
        if window >= WINDOW {
            self.began = (received, now);
            let threshold = if self.is_high { RESUME_BELOW } else { DEFER_FROM };
            let frames = u128::from(received - before);
            self.is_high = frames * self.interval.as_nanos() >= u128::from(threshold) * window.as_nanos();
        }
        self.is_high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_high_from_two_frames_an_interval_and_stays_so_down_to_one() {
        let mut rate = FrameRate::new(Duration::from_micros(200));
        let (mut now, mut received, mut was_high) = (Time::ZERO, 0, false);
        // 50 intervals in a window.
        for (frames, is_high) in
            [(99, false), (100, true), (50, true), (49, false), (99, false), (5_000, true)]
        {
            let half = rate.is_high(now + WINDOW / 2, received + frames / 2);
            assert_eq!(half, was_high, "{frames} frames: no decision before the end of the window");
            (now, received) = (now + WINDOW, received + frames);
            assert_eq!(rate.is_high(now, received), is_high, "{frames} frames");
            was_high = is_high;
        }
        assert!(!rate.is_high(now + Duration::from_secs(5), received + 10), "few frames in a long pause");
    }
}
