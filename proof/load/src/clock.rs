//! This machine's monotonic clock, which all processes and namespaces on it share.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on the monotonic clock.
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// CPU time of this process so far, in nanoseconds.
pub fn cpu_ns() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// A run's clock. Its time zero is `zero_ns` on the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    zero_ns: u64,
}

impl Clock {
    pub fn new(zero_ns: u64) -> Clock {
        Clock { zero_ns }
    }

    /// Nanoseconds since time zero; 0 before time zero.
    pub fn now_ns(self) -> u64 {
        monotonic_ns().saturating_sub(self.zero_ns)
    }
}
