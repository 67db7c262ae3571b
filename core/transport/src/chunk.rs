//! Buffers that move from an application to a transport without a copy.

use alloc::vec::Vec;

/// An owned buffer of which a prefix may have been sent already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    bytes: Vec<u8>,
    start: usize,
}

impl Chunk {
    /// An empty chunk with memory for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Chunk {
        Chunk { bytes: Vec::with_capacity(capacity), start: 0 }
    }

    /// The bytes left to send.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Number of bytes left to send.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether no bytes are left to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Allocated size in bytes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Drops a prefix that has been sent, at most all bytes left.
    pub fn advance(&mut self, sent: usize) {
        self.start = self.bytes.len().min(self.start + sent);
    }

    /// The whole buffer, for filling. Call this only before any byte is sent.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        debug_assert_eq!(self.start, 0, "a partly sent chunk must not be refilled");
        &mut self.bytes
    }

    /// The whole buffer, and how many bytes at its beginning have been sent.
    pub fn into_buffer(self) -> (Vec<u8>, usize) {
        (self.bytes, self.start)
    }

    /// Empties the chunk and keeps its allocation.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
    }
}

impl From<Vec<u8>> for Chunk {
    fn from(bytes: Vec<u8>) -> Chunk {
        Chunk { bytes, start: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advance_stops_at_the_end_of_the_chunk() {
        let mut chunk = Chunk::from(Vec::from(*b"abcdef"));
        chunk.advance(2);
        assert_eq!(chunk.as_slice(), b"cdef");
        assert_eq!(chunk.clone().into_buffer(), (Vec::from(*b"abcdef"), 2));
        chunk.advance(100);
        assert!(chunk.is_empty(), "the chunk should be empty");
        chunk.clear();
        chunk.buffer().extend_from_slice(b"x");
        assert_eq!(chunk.as_slice(), b"x");
    }
}
