//! Splits the CPU time of a loop's thread into the work within turns and the system calls around them.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use spillway_transport::Time;
use spillway_xdp::Endpoint;

use crate::experiments::common::script::{PORT, port_of};
use crate::stats::median;

/// One turn in 2 to the power of this is timed: each timed turn costs two more system calls.
const SAMPLED_BITS: u32 = 3;
const CALIBRATION_READS: usize = 1_000;

pub(super) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32) // below 10^9
}

/// Cost of a reading of [`thread_cpu`]: the median over consecutive readings.
pub(super) fn clock_cost() -> Duration {
    let mut last = thread_cpu();
    let differences = (0..CALIBRATION_READS).map(|_| {
        let now = thread_cpu();
        let difference = now.saturating_sub(last);
        last = now;
        difference.as_nanos() as f64
    });
    let ns = median(&differences.collect::<Vec<_>>()).unwrap_or(0.0);
    Duration::from_nanos(ns as u64)
}

/// Totals of a loop's turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TurnCounts {
    /// Frames of clients: requests, and segments of handshakes.
    pub requests: u64,
    /// All received frames.
    pub frames: u64,
    pub turns: u64,
    /// Turns with at least one received frame.
    pub turns_with_frames: u64,
    pub sampled_turns: u64,
    /// CPU time within the sampled turns, from their beginning until the endpoint had no more frames to send.
    pub sampled: Duration,
}

impl TurnCounts {
    pub fn since(&self, earlier: &TurnCounts) -> TurnCounts {
        TurnCounts {
            requests: self.requests - earlier.requests,
            frames: self.frames - earlier.frames,
            turns: self.turns - earlier.turns,
            turns_with_frames: self.turns_with_frames - earlier.turns_with_frames,
            sampled_turns: self.sampled_turns - earlier.sampled_turns,
            sampled: self.sampled.saturating_sub(earlier.sampled),
        }
    }

    /// CPU time within all turns, estimated from the sampled ones.
    pub fn in_turns(&self) -> Duration {
        if self.sampled_turns == 0 {
            return Duration::ZERO;
        }
        self.sampled.mul_f64(self.turns as f64 / self.sampled_turns as f64)
    }
}

/// An endpoint whose turns are counted, and sampled at random: samples at a fixed interval could all be of
/// turns with requests, or all of turns with replies.
pub(super) struct Clocked<E> {
    endpoint: E,
    counts: TurnCounts,
    clock_cost: Duration,
    random: u64,
    began: Option<Duration>,
    has_frames: bool,
}

impl<E> Clocked<E> {
    /// An endpoint without turns. `clock_cost` is subtracted from each sample.
    pub fn new(endpoint: E, clock_cost: Duration) -> Clocked<E> {
        let counts = TurnCounts::default();
        Clocked {
            endpoint,
            counts,
            clock_cost,
            random: 0x9e37_79b9_7f4a_7c15,
            began: None,
            has_frames: false,
        }
    }

    pub fn counts(&self) -> TurnCounts {
        self.counts
    }

    /// Whether the next turn is timed (xorshift64).
    fn is_sampled(&mut self) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> (u64::BITS - SAMPLED_BITS) == 0
    }
}

impl<E: Endpoint> Endpoint for Clocked<E> {
    fn begin_turn(&mut self, now: Time) {
        self.counts.turns += 1;
        self.has_frames = false;
        // Drops the sample of an earlier turn that ended for lack of room: it was not timed to its end.
        self.began = self.is_sampled().then(thread_cpu);
        self.endpoint.begin_turn(now);
    }

    fn deliver(&mut self, now: Time, frame: &[u8]) {
        self.has_frames = true;
        self.counts.frames += 1;
        self.counts.requests += u64::from(port_of(frame) == Some(PORT));
        self.endpoint.deliver(now, frame);
    }

    fn end_turn(&mut self, now: Time) {
        self.counts.turns_with_frames += u64::from(self.has_frames);
        self.endpoint.end_turn(now);
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize> {
        let length = self.endpoint.poll_transmit(now, slot);
        if length.is_none()
            && let Some(began) = self.began.take()
        {
            self.counts.sampled_turns += 1;
            self.counts.sampled += thread_cpu().saturating_sub(began).saturating_sub(self.clock_cost);
        }
        length
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.endpoint.poll_timeout()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Works for a while in each turn; sends nothing.
    struct Worker;

    impl Endpoint for Worker {
        fn begin_turn(&mut self, _now: Time) {}

        fn deliver(&mut self, _now: Time, _frame: &[u8]) {
            let start = thread_cpu();
            while thread_cpu() - start < Duration::from_micros(20) {}
        }

        fn end_turn(&mut self, _now: Time) {}

        fn poll_transmit(&mut self, _now: Time, _slot: &mut [u8]) -> Option<usize> {
            None
        }

        fn poll_timeout(&self) -> Option<Time> {
            None
        }
    }

    #[test]
    fn work_within_turns_is_estimated_from_samples() {
        let mut clocked = Clocked::new(Worker, clock_cost());
        let (start, turns) = (thread_cpu(), 2_000);
        for turn in 0..turns {
            clocked.begin_turn(Time(turn));
            clocked.deliver(Time(turn), &[0; 60]);
            clocked.end_turn(Time(turn));
            assert_eq!(clocked.poll_transmit(Time(turn), &mut []), None);
        }
        let (all, counts) = (thread_cpu() - start, clocked.counts());
        assert_eq!((counts.turns, counts.turns_with_frames, counts.frames), (turns, turns, turns));
        assert_eq!(counts.requests, 0, "the frame has another port");
        assert!((turns / 16..turns / 4).contains(&counts.sampled_turns), "{counts:?}");
        let share = counts.in_turns().as_secs_f64() / all.as_secs_f64();
        assert!((0.8..1.2).contains(&share), "{share}: nearly all of the time is within turns");
    }

    #[test]
    fn counts_are_differences_and_nothing_sampled_is_no_time() {
        let early = TurnCounts { requests: 1, turns: 4, sampled_turns: 1, ..TurnCounts::default() };
        let late = TurnCounts {
            requests: 5,
            turns: 24,
            sampled_turns: 3,
            sampled: Duration::from_nanos(10),
            ..early
        };
        let difference = late.since(&early);
        assert_eq!((difference.requests, difference.in_turns()), (4, Duration::from_nanos(100)));
        assert_eq!(TurnCounts::default().in_turns(), Duration::ZERO);
    }
}
