//! Schedule of the scans for clients to close while memory is scarce.
//!
//! Clients are not scanned while memory is sufficient. A scan at the bound closes clients until an eighth of the memory
//! is free, so that scans are rare.

use core::time::Duration;

use spillway_transport::Time;

use crate::memory::Memory;
use crate::notice::Notice;

/// Interval between scans for clients that do not read, while memory is scarce.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Delay of the next scan at the bound after a scan that freed too little, because links or the turn's own bytes hold
/// the rest.
const RESCAN_DELAY: Duration = Duration::from_millis(10);

/// Memory pressure: the next scans, and the counters of the present shortage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pressure {
    /// Next scan for clients that do not read.
    next_scan: Option<Time>,
    /// No scan for the largest clients before this time, because it would free too little.
    no_rescan_before: Time,
    /// Clients closed for memory since the start.
    closed: u64,
    /// Number of pauses and of closed clients since the start, at the time when memory became scarce.
    counts_before: (u64, u64),
}

impl Pressure {
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.next_scan
    }

    /// Whether a scan for clients that do not read is due. If so, schedules the next one.
    #[must_use]
    pub(crate) fn handle_timeout(&mut self, now: Time) -> bool {
        let is_due = self.next_scan.is_some_and(|at| at <= now);
        if is_due {
            self.next_scan = Some(now + SCAN_INTERVAL);
        }
        is_due
    }

    /// Whether a scan for the largest clients is allowed now.
    pub(crate) fn may_close_largest(&self, now: Time, memory: &Memory) -> bool {
        memory.is_exceeded() && (now >= self.no_rescan_before || memory.clients() > memory.max())
    }

    /// Delays the next scan for the largest clients, because the last one has freed too little memory.
    pub(crate) fn delay_rescan(&mut self, now: Time) {
        self.no_rescan_before = now + RESCAN_DELAY;
    }

    pub(crate) fn count_closed(&mut self) {
        self.closed += 1;
    }

    /// Memory has become scarce or sufficient. Returns the notice for the log.
    pub(crate) fn scarcity_changed(&mut self, now: Time, memory: &Memory, clients: u32) -> Notice {
        let (held, limit) = (memory.total(), memory.max());
        if memory.is_scarce() {
            self.next_scan = Some(now + SCAN_INTERVAL);
            self.counts_before = (memory.pauses(), self.closed);
            return Notice::MemoryScarce { held, limit, clients };
        }
        self.next_scan = None;
        let (pauses, closed) = self.counts_before;
        let (paused, closed) = (memory.pauses() - pauses, self.closed - closed);
        Notice::MemoryEnough { held, limit, paused, closed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_run_once_a_second_while_memory_is_scarce() {
        let mut memory = Memory::new(800);
        let mut pressure = Pressure::default();
        memory.count_pause();
        pressure.count_closed();
        memory.resize_client(0, 700);
        assert!(memory.update_scarcity(), "memory should become scarce");
        let scarce = pressure.scarcity_changed(Time(5), &memory, 3);
        assert_eq!(scarce, Notice::MemoryScarce { held: 700, limit: 800, clients: 3 });
        let at = pressure.poll_timeout().unwrap();
        assert!(
            !pressure.handle_timeout(Time(6)) && pressure.handle_timeout(at),
            "a scan should run when it is due, and not before"
        );
        assert_eq!(pressure.poll_timeout(), Some(at + SCAN_INTERVAL));
        memory.count_pause();
        memory.resize_client(700, 0);
        assert!(memory.update_scarcity(), "memory should become sufficient");
        let enough = pressure.scarcity_changed(at, &memory, 3);
        assert_eq!(enough, Notice::MemoryEnough { held: 0, limit: 800, paused: 1, closed: 0 });
        assert_eq!(pressure.poll_timeout(), None);
    }

    #[test]
    fn next_scan_is_delayed_after_one_that_freed_too_little() {
        let mut memory = Memory::new(800);
        let mut pressure = Pressure::default();
        memory.resize_link(0, 900);
        assert!(pressure.may_close_largest(Time(0), &memory), "the first scan should run at once");
        pressure.delay_rescan(Time(0));
        assert!(!pressure.may_close_largest(Time(1), &memory), "the next scan should be delayed");
        assert!(
            pressure.may_close_largest(Time(0) + RESCAN_DELAY, &memory),
            "the next scan should run after the delay"
        );
        memory.resize_client(0, 801);
        assert!(
            pressure.may_close_largest(Time(1), &memory),
            "a scan should be allowed when clients alone exceed the bound"
        );
    }
}
