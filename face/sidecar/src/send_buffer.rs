//! Bytes received from one side that the other side has not accepted yet.

/// A buffer that frees its memory when it becomes empty.
#[derive(Debug, Default)]
pub(crate) struct SendBuffer {
    bytes: Vec<u8>,
    sent: usize,
}

impl SendBuffer {
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Appends bytes. Callers bound the buffer: they append only the rest of one read, when the buffer is empty.
    pub fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Removes `count` bytes that were sent.
    pub fn advance(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.bytes.len() {
            *self = SendBuffer::default();
        }
    }

    /// Allocated bytes.
    pub fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_buffer_frees_its_memory() {
        let mut buffer = SendBuffer::default();
        buffer.advance(0);
        assert!(buffer.is_empty());
        buffer.append(b"hello");
        buffer.advance(2);
        assert_eq!(buffer.unsent(), b"llo");
        buffer.append(b"!");
        buffer.advance(4);
        assert!(buffer.is_empty() && buffer.memory() == 0);
    }
}
