//! The clock shared by all threads of a program.

use std::time::Instant;

use spillway_transport::Time;

/// A monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts at zero.
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// Time since the start of the clock.
    pub fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }
}
