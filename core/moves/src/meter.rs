//! Measures the load of a server's thread: its use of the CPU, and how long frames wait for it.

use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::load::LOAD_MAX;

/// The measurements of a thread between two looks at its load.
///
/// A device does not state when a frame arrived. All frames of a turn have arrived since the device was last seen empty, so
/// half of the time since then is taken for their wait.
#[derive(Clone, Debug)]
pub struct Meter {
    /// Beginning of the last turn that found the device empty.
    empty_at: Time,
    /// Sum of the waits of all frames since the last look, in nanoseconds, and their number.
    waits_ns: u128,
    frames: u64,
    /// Time and CPU time at the last look.
    last: (Time, Duration),
}

impl Meter {
    /// `cpu`: CPU time that the thread has used until now.
    pub fn new(now: Time, cpu: Duration) -> Meter {
        Meter { empty_at: now, waits_ns: 0, frames: 0, last: (now, cpu) }
    }

    /// A turn that began at `now` has received this number of frames. `is_empty`: no frame has remained in the device.
    pub fn record_turn(&mut self, now: Time, frames: usize, is_empty: bool) {
        let wait = now.since(self.empty_at) / 2;
        self.waits_ns += wait.as_nanos() * frames as u128;
        self.frames += frames as u64;
        if is_empty {
            self.empty_at = now;
        }
    }

    /// The thread begins to wait for frames: what arrives from now on is handled at once.
    pub fn record_waited(&mut self, now: Time) {
        self.empty_at = now;
    }

    /// Ends the time between two looks. `cpu`: CPU time that the thread has used until now. Returns the use of the CPU in
    /// millionths, at most 1,000,000, and the mean wait.
    pub fn look(&mut self, now: Time, cpu: Duration) -> (u32, Duration) {
        let (last_at, last_cpu) = core::mem::replace(&mut self.last, (now, cpu));
        let passed = now.since(last_at).as_nanos().max(1);
        let used = cpu.saturating_sub(last_cpu).as_nanos() * u128::from(LOAD_MAX) / passed;
        let mean = core::mem::take(&mut self.waits_ns) / u128::from(core::mem::take(&mut self.frames).max(1));
        let used = u32::try_from(used).unwrap_or(u32::MAX).min(LOAD_MAX);
        (used, Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(us: u64) -> Time {
        Time(us * 1_000)
    }

    #[test]
    fn use_of_the_cpu_is_a_share_of_the_time_that_has_passed() {
        let mut meter = Meter::new(at(0), MS);
        assert_eq!(meter.look(at(10_000), MS * 3), (200_000, Duration::ZERO));
        assert_eq!(meter.look(at(20_000), MS * 3).0, 0);
        assert_eq!(meter.look(at(21_000), MS * 9).0, LOAD_MAX, "clocks may differ by a little");
        assert_eq!(meter.look(at(21_000), MS * 9).0, 0);
    }

    #[test]
    fn waits_grow_while_the_device_is_not_empty() {
        let mut meter = Meter::new(at(0), MS);
        meter.record_turn(at(100), 2, true);
        assert_eq!(meter.look(at(100), MS).1, Duration::from_micros(50));
        meter.record_turn(at(200), 64, false);
        meter.record_turn(at(300), 64, false);
        assert_eq!(meter.look(at(300), MS).1, Duration::from_micros(75), "50 and 100 us");
        meter.record_turn(at(400), 1, true);
        meter.record_waited(at(9_000));
        meter.record_turn(at(9_010), 1, true);
        assert_eq!(meter.look(at(9_010), MS).1, Duration::from_nanos(77_500), "150 and 5 us");
    }
}
