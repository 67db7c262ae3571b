//! What is measured of a stack: a server on it that sends back what comes.

use std::ops::Range;

use spillway_transport::Time;

use crate::experiments::common::script::Frames;

/// An echo server on a stack.
pub trait Echo {
    /// These frames come, of the connections in `owners`; what goes is added to `out`.
    fn turn(&mut self, now: Time, frames: &Frames, these: Range<usize>, owners: &[usize], out: &mut Frames);
}
