//! The clock that all contexts of a program share.

use std::time::Instant;

use spillway_transport::Time;

/// Time since the program's start, monotonic.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that stands at zero now.
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// The time now.
    pub fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }
}
