//! The counters of one thread on AF_XDP.

use spillway_bpf::VerdictCounters;

use crate::crossing::CrossingCounters;
use crate::driver::Counters;
use crate::socket::Statistics;

/// Totals of one thread since its start.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Frames and turns of the thread's loop.
    pub driver: Counters,
    /// Frames for other threads.
    pub crossing: CrossingCounters,
    /// Counters of the thread's stack.
    pub stack: spillway_tcp::Counters,
    /// The kernel's counters of the thread's sockets.
    pub sockets: Statistics,
    /// Counters of the steering program, which all threads of the interface share.
    pub verdicts: VerdictCounters,
    /// Whether the thread's load defers the interface's interrupts at present.
    pub is_deferring: bool,
}
