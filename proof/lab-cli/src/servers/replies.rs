//! Replies of one connection that wait for room in the stack.

/// No request is executed while this many bytes wait: what waits is shorter than this and the longest value together.
const BYTES_MAX: usize = 64 * 1024;
/// An empty buffer of more bytes is freed.
const KEPT_BYTES_MAX: usize = 4096;

/// Replies of one connection that wait for room in the stack.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    bytes: Vec<u8>,
    /// Bytes at the front that the stack has taken.
    taken: usize,
}

impl Replies {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The bytes that the stack has not taken.
    pub(super) fn waiting(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// The stack has taken further bytes.
    pub(super) fn take(&mut self, count: usize) {
        self.taken += count;
        if self.taken == self.bytes.len() {
            self.taken = 0;
            empty(&mut self.bytes);
        } else if self.taken >= self.bytes.len() / 2 {
            // Each byte is moved at most once on average, however small the steps are.
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
    }

    /// Bytes in the buffer.
    pub(super) fn held(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// No further request may be executed before some bytes have left.
    pub(super) fn is_full(&self) -> bool {
        self.waiting().len() >= BYTES_MAX
    }
}

/// Empties a buffer, and frees it if it is large.
pub(super) fn empty(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEPT_BYTES_MAX {
        *buffer = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_leave_in_order_and_in_steps_of_any_size() {
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(3 * BYTES_MAX).collect();
        for step in [1, 7, BYTES_MAX, 3 * BYTES_MAX] {
            let (mut replies, mut left) = (Replies::default(), Vec::new());
            replies.push(&bytes);
            assert!(replies.is_full());
            while !replies.is_empty() {
                let count = replies.waiting().len().min(step);
                left.extend_from_slice(&replies.waiting()[..count]);
                replies.take(count);
            }
            assert!(left == bytes && !replies.is_full() && replies.bytes.capacity() <= KEPT_BYTES_MAX);
        }
    }
}
