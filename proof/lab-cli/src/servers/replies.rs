//! Replies of one connection that wait for room in the stack: bytes, and at most one object after them, whose bytes are not
//! copied before there is room.

use spillway_load::objects::Rest;
use spillway_transport::{Conn, Transport};

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
    /// The object that follows the bytes.
    object: Rest,
}

impl Replies {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        debug_assert!(self.object.is_empty(), "nothing follows an object before it has left");
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends an object. No request may be executed before its bytes have left: [`is_full`](Self::is_full).
    pub(super) fn push_object(&mut self, object: Rest) {
        debug_assert!(self.object.is_empty(), "the object before has left");
        self.object = object;
    }

    /// Sends as much as the stack has room for. Returns whether it has taken everything; if not, an event reports new room.
    pub(super) fn send<T: Transport>(&mut self, conn: Conn, out: &mut T) -> bool {
        if !self.bytes.is_empty() {
            let sent = out.send(conn, self.waiting());
            self.take(sent);
            if !self.bytes.is_empty() {
                return false;
            }
        }
        while !self.object.is_empty() {
            let part = self.object.first_part();
            let sent = out.send(conn, part);
            self.object.advance(sent);
            if sent < part.len() {
                return false;
            }
        }
        true
    }

    /// The bytes that the stack has not taken, without those of an object.
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

    /// Bytes in the buffer; an object takes none.
    pub(super) fn held(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.object.is_empty()
    }

    /// No further request may be executed before some bytes have left.
    pub(super) fn is_full(&self) -> bool {
        self.waiting().len() >= BYTES_MAX || !self.object.is_empty()
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
    use super::super::test_transport::TestTransport;
    use super::*;

    const CONN: Conn = Conn { slot: 0, generation: 0 };

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

    #[test]
    fn an_object_leaves_after_the_bytes_without_being_buffered() {
        let object = Rest::of(b"/a?bytes=200000", 200_000);
        for room in [1, 1_448, 65_536, 1 << 20] {
            let (mut replies, mut out, mut expected) = (Replies::default(), TestTransport::default(), object);
            replies.push(b"head");
            replies.push_object(object);
            let mut steps = 0;
            while !replies.send(CONN, &mut out) {
                assert!(replies.is_full() && !replies.is_empty() && replies.held() <= 4);
                (out.room, steps) = (room, steps + 1);
            }
            assert!(steps >= 200_004 / room && out.sent.starts_with(b"head"));
            assert!(expected.take(&out.sent[4..]) && expected.is_empty(), "in steps of {room} bytes");
            assert!(replies.is_empty() && !replies.is_full());
        }
    }
}
