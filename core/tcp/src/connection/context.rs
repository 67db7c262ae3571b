//! What the stack lends to the methods of a connection, and what it gets back from a segment.

use core::ops::Range;

use spillway_transport::Time;

use super::send_queue::SpentChunks;
use crate::counters::Counters;
use crate::dropped::{Dropped, Drops};
use crate::event::Events;
use crate::settings::Settings;

/// The parts of the stack that a connection's methods may use.
pub(crate) struct Context<'a> {
    pub(crate) now: Time,
    pub(crate) settings: &'a Settings,
    pub(crate) events: &'a mut Events,
    pub(crate) spent: &'a mut SpentChunks,
    pub(crate) counters: &'a mut Counters,
    pub(crate) drops: &'a mut Drops,
    /// Room left in the stack for bytes that are out of order or not granted.
    pub(crate) waiting_bytes_free: usize,
}

impl Context<'_> {
    /// Counts the current segment, or a part of it, as dropped.
    #[cold]
    pub(crate) fn drop(&mut self, reason: Dropped) {
        self.drops.add(self.now, reason, self.counters);
    }
}

/// What is left to do after a segment was handled.
#[derive(Debug, Default)]
pub(crate) struct SegmentResult {
    /// In-order bytes: their range in the payload, and the stream offset after them.
    pub(crate) delivery: Option<(Range<usize>, u64)>,
    /// The segment must be answered with a reset.
    pub(crate) must_reset: bool,
}
