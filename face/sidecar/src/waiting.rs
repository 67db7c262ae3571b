//! Bytes that one side gave and the other has not taken.

/// A buffer that has become empty gives its memory back.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    bytes: Vec<u8>,
    taken: usize,
}

impl Waiting {
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Keeps these behind what waits. Whoever gives more than one piece at a time bounds them.
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// So many were taken.
    pub fn advance(&mut self, count: usize) {
        self.taken += count;
        if self.taken >= self.bytes.len() {
            *self = Waiting::default();
        }
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_gone_and_so_is_the_memory() {
        let mut waiting = Waiting::default();
        waiting.advance(0);
        assert!(waiting.is_empty());
        waiting.put(b"hello");
        waiting.advance(2);
        assert_eq!(waiting.rest(), b"llo");
        waiting.put(b"!");
        waiting.advance(4);
        assert!(waiting.is_empty() && waiting.memory() == 0);
    }
}
