//! Windows of plain clients: bytes that a server may send ahead of the client's connection.
//!
//! A window starts small and doubles while the client's connection takes a whole window within 100 ms. A client that
//! never reads therefore costs little memory. All windows together are bounded, so that such clients need not be
//! closed: closed clients would reconnect and request the same replies again.

use core::time::Duration;

use spillway_transport::Time;

use crate::memory::Memory;

/// A window that is used up within this time is doubled, because it limits the client's throughput.
const GROWTH_TIME_MAX: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Window {
    bytes: u32,
    /// Growth since the window was opened, which counts against the bound for all windows.
    grown: u32,
    /// Bytes that the client's connection has taken since `since`.
    taken: usize,
    since: Time,
}

impl Window {
    pub(crate) fn new(now: Time, bytes: u32) -> Window {
        Window { bytes, grown: 0, taken: 0, since: now }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// The client's connection has taken `bytes`, and no bytes wait. Returns the new window if it grows. `max` limits
    /// the window.
    pub(crate) fn record_taken(
        &mut self,
        now: Time,
        bytes: usize,
        max: u32,
        memory: &mut Memory,
    ) -> Option<u32> {
        if now.since(self.since) > GROWTH_TIME_MAX {
            (self.taken, self.since) = (0, now);
        }
        self.taken += bytes;
        if self.taken < self.bytes() || self.bytes >= max {
            return None;
        }
        (self.taken, self.since) = (0, now);
        let growth = self.bytes.min(max - self.bytes);
        if !memory.reserve_window(growth as usize) {
            return None;
        }
        self.bytes += growth;
        self.grown += growth;
        Some(self.bytes)
    }

    pub(crate) fn release_memory(&mut self, memory: &mut Memory) {
        memory.release_window(core::mem::take(&mut self.grown) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_doubles_while_used_up_within_100_ms_and_memory_is_free() {
        let mut memory = Memory::new(400);
        let mut window = Window::new(Time(0), 10);
        let mut take = |window: &mut Window, ms: u64, bytes| {
            window.record_taken(Time(ms * 1_000_000), bytes, 64, &mut memory)
        };
        assert_eq!((take(&mut window, 1, 9), take(&mut window, 2, 1)), (None, Some(20)));
        assert_eq!(
            (take(&mut window, 3, 19), take(&mut window, 200, 1)),
            (None, None),
            "a window that is used up in more than 100 ms should stay"
        );
        assert_eq!((take(&mut window, 201, 30), take(&mut window, 202, 40)), (Some(40), Some(64)));
        assert_eq!(take(&mut window, 203, 1000), None, "a window should not exceed its maximum");
        // All windows together may grow by a quarter of the memory: 100 bytes, of which 54 are in use.
        let mut other = Window::new(Time(0), 40);
        assert_eq!(take(&mut other, 0, 40), Some(64));
        let mut third = Window::new(Time(0), 32);
        assert_eq!(take(&mut third, 0, 32), None);
        window.release_memory(&mut memory);
        window.release_memory(&mut memory);
        assert_eq!(third.record_taken(Time(0), 32, 64, &mut memory), Some(64));
        assert!(
            memory.reserve_window(100 - 24 - 32) && !memory.reserve_window(1),
            "exactly the free memory should be reserved"
        );
    }
}
