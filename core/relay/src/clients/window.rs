//! How many bytes a server may send to a plain client ahead of what the client's connection has taken.
//!
//! A window begins small and doubles as long as the client's connection takes a window's bytes at once. So a client that asks
//! for much and never reads costs little more than what its host takes; all windows together have a bound, so that such
//! clients do not have to be closed, only to come back and ask again.

use core::time::Duration;

use spillway_transport::Time;

use crate::memory::Memory;

/// A window that was taken within this time is doubled: it holds back a client that receives so much.
const SOON: Duration = Duration::from_millis(100);

/// The window of one client.
#[derive(Debug)]
pub(crate) struct Window {
    bytes: u32,
    /// Of these, what counts against the bound for all clients.
    widened: u32,
    /// Taken since `since`.
    taken: usize,
    since: Time,
}

impl Window {
    pub(crate) fn new(now: Time, bytes: u32) -> Window {
        Window { bytes, widened: 0, taken: 0, since: now }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// The client's connection has taken bytes, and nothing waits. Returns the window if it is larger from now on, which is
    /// `most` at most.
    pub(crate) fn taken(&mut self, now: Time, bytes: usize, most: u32, memory: &mut Memory) -> Option<u32> {
        if now.since(self.since) > SOON {
            (self.taken, self.since) = (0, now);
        }
        self.taken += bytes;
        if self.taken < self.bytes() || self.bytes >= most {
            return None;
        }
        (self.taken, self.since) = (0, now);
        let more = self.bytes.min(most - self.bytes);
        if !memory.widen(more as usize) {
            return None;
        }
        self.bytes += more;
        self.widened += more;
        Some(self.bytes)
    }

    /// The client is gone.
    pub(crate) fn over(&mut self, memory: &mut Memory) {
        memory.narrow(core::mem::take(&mut self.widened) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_while_windows_are_taken_at_once_and_there_is_memory() {
        let mut memory = Memory::new(400);
        let mut window = Window::new(Time(0), 10);
        let mut take =
            |window: &mut Window, ms: u64, bytes| window.taken(Time(ms * 1_000_000), bytes, 64, &mut memory);
        assert_eq!((take(&mut window, 1, 9), take(&mut window, 2, 1)), (None, Some(20)));
        assert_eq!((take(&mut window, 3, 19), take(&mut window, 200, 1)), (None, None), "that took long");
        assert_eq!((take(&mut window, 201, 30), take(&mut window, 202, 40)), (Some(40), Some(64)));
        assert_eq!(take(&mut window, 203, 1000), None, "it is as large as it may be");
        // All together may grow by a quarter of the memory: 100 bytes, of which 54 are in use.
        let mut other = Window::new(Time(0), 40);
        assert_eq!(take(&mut other, 0, 40), Some(64));
        let mut third = Window::new(Time(0), 32);
        assert_eq!(take(&mut third, 0, 32), None);
        window.over(&mut memory);
        window.over(&mut memory);
        assert_eq!(third.taken(Time(0), 32, 64, &mut memory), Some(64));
        assert!(memory.widen(100 - 24 - 32) && !memory.widen(1));
    }
}
