//! Bytes that wait, and what all waiting bytes may take together.

use alloc::vec::Vec;

/// A queue of bytes. Empty ones hold no memory: few clients have any.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    bytes: Vec<u8>,
    start: usize,
}

impl Backlog {
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub(crate) fn push(&mut self, bytes: &[u8], memory: &mut Memory) {
        // Moved to the front only when that frees half: each byte is moved once on average.
        if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
        memory.held += bytes.len();
    }

    /// Drops a prefix: at most all of it.
    pub(crate) fn advance(&mut self, taken: usize, memory: &mut Memory) {
        let taken = taken.min(self.len());
        self.start += taken;
        memory.held -= taken;
        if self.is_empty() {
            *self = Backlog::default();
        }
    }

    pub(crate) fn clear(&mut self, memory: &mut Memory) {
        self.advance(self.len(), memory);
    }
}

/// What all clients have buffered.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) held: usize,
    max: usize,
}

impl Memory {
    pub(crate) fn new(max: usize) -> Memory {
        Memory { held: 0, max }
    }

    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    pub(crate) fn is_exceeded(&self) -> bool {
        self.held > self.max
    }

    /// No more clients from here on: those that are here may still need some.
    pub(crate) fn is_scarce(&self) -> bool {
        self.held > self.max / 4 * 3
    }

    /// An amount that is counted as a whole has changed.
    pub(crate) fn changed(&mut self, from: usize, to: usize) {
        self.held = self.held - from + to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_and_counts() {
        let (mut memory, mut backlog) = (Memory::new(100), Backlog::default());
        let (mut pushed, mut taken) = (0_u8, 0_u8);
        for step in [7, 30, 1, 60, 2, 9] {
            for _ in 0..step {
                backlog.push(&[pushed], &mut memory);
                pushed += 1;
            }
            let part = backlog.len() * 2 / 3;
            assert_eq!(backlog.as_slice()[0], taken);
            backlog.advance(part, &mut memory);
            taken += part as u8;
            assert_eq!(
                (memory.held, backlog.len()),
                (usize::from(pushed - taken), usize::from(pushed - taken))
            );
        }
        assert!(!memory.is_exceeded());
        backlog.push(&[0; 101], &mut memory);
        assert!(memory.is_exceeded() && memory.is_scarce());
        backlog.clear(&mut memory);
        assert_eq!((memory.held, backlog.bytes.capacity()), (0, 0));
    }
}
