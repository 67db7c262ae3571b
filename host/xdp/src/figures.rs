//! What one thread on AF_XDP has counted.

use spillway_bpf::VerdictCounters;

use crate::crossing::CrossingCounters;
use crate::driver::Counters;
use crate::socket::Statistics;

/// Totals of one thread since its start.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Frames and turns of its loop.
    pub driver: Counters,
    /// Frames for other threads.
    pub crossing: CrossingCounters,
    /// What its stack has counted.
    pub stack: spillway_tcp::Counters,
    /// What the kernel has counted at its sockets.
    pub sockets: Statistics,
    /// What the steering program of the whole interface has counted.
    pub verdicts: VerdictCounters,
    /// Whether the thread's load defers the interface's interrupts at present.
    pub is_deferring: bool,
}
