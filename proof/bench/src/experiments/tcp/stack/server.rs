//! The interface of the echo servers under test.

use std::ops::Range;

use spillway_transport::Time;

use crate::experiments::common::script::Frames;

pub trait Echo {
    /// Delivers the frames in `range`; `owners` has the client's index of each. Adds sent frames to `out`.
    fn turn(&mut self, now: Time, frames: &Frames, range: Range<usize>, owners: &[usize], out: &mut Frames);
}
