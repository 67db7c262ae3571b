//! Queues of waiting bytes, in pieces, so that memory is released while a queue empties.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::memory::Memory;

/// Capacity of a piece. Each further piece of a queue is twice as large as the previous one, up to the maximum.
const PIECE_BYTES_MIN: usize = 256;
const PIECE_BYTES_MAX: usize = 16 * 1024;

/// A queue of bytes. An empty queue holds no memory, because most clients have no waiting bytes.
#[derive(Debug, Default)]
pub(crate) struct Backlog(Option<Box<Queue>>);

#[derive(Debug, Default)]
struct Queue {
    pieces: VecDeque<Piece>,
    len: usize,
    capacity: usize,
}

/// Bytes of a queue. A piece never grows beyond its initial capacity.
#[derive(Debug)]
struct Piece {
    bytes: Vec<u8>,
    /// Offset of the first byte that has not been removed.
    start: usize,
}

impl Backlog {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |queue| queue.len)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.0.as_ref().map_or(0, |queue| queue.capacity)
    }

    /// The bytes of the oldest piece. Empty only if the backlog is empty.
    pub(crate) fn front(&self) -> &[u8] {
        let front = self.0.as_ref().and_then(|queue| queue.pieces.front());
        front.map_or(&[], |piece| &piece.bytes[piece.start..])
    }

    pub(crate) fn push(&mut self, bytes: &[u8], memory: &mut Memory) {
        if !bytes.is_empty() {
            self.0.get_or_insert_default().push(bytes, memory);
        }
    }

    /// Removes the first `count` bytes, or all if there are fewer.
    pub(crate) fn advance(&mut self, count: usize, memory: &mut Memory) {
        let Some(queue) = &mut self.0 else { return };
        queue.advance(count, memory);
        if queue.len == 0 {
            debug_assert_eq!(queue.capacity, 0, "an empty backlog should hold no memory");
            self.0 = None;
        }
    }

    pub(crate) fn clear(&mut self, memory: &mut Memory) {
        self.advance(self.len(), memory);
    }

    /// Removes all bytes and returns them. They are no longer counted in `memory`.
    pub(crate) fn take(&mut self, memory: &mut Memory) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len());
        while !self.is_empty() {
            let front = self.front();
            let bytes = front.len();
            all.extend_from_slice(front);
            self.advance(bytes, memory);
        }
        all
    }
}

impl Queue {
    fn push(&mut self, mut bytes: &[u8], memory: &mut Memory) {
        self.len += bytes.len();
        while !bytes.is_empty() {
            let last = self.pieces.back_mut().filter(|last| last.bytes.len() < last.bytes.capacity());
            let Some(last) = last else {
                self.add_piece(bytes.len(), memory);
                continue;
            };
            let (head, rest) = bytes.split_at(bytes.len().min(last.bytes.capacity() - last.bytes.len()));
            last.bytes.extend_from_slice(head);
            bytes = rest;
        }
    }

    fn add_piece(&mut self, needed: usize, memory: &mut Memory) {
        let doubled = self.pieces.back().map_or(PIECE_BYTES_MIN, |last| last.bytes.capacity() * 2);
        let bytes = Vec::with_capacity(needed.max(doubled).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX));
        self.capacity += bytes.capacity();
        memory.resize_client(0, bytes.capacity());
        self.pieces.push_back(Piece { bytes, start: 0 });
    }

    fn advance(&mut self, count: usize, memory: &mut Memory) {
        let mut left = count.min(self.len);
        self.len -= left;
        while left > 0 {
            let Some(front) = self.pieces.front_mut() else { break };
            let removed = left.min(front.bytes.len() - front.start);
            front.start += removed;
            left -= removed;
            if front.start == front.bytes.len() {
                let freed = front.bytes.capacity();
                self.capacity -= freed;
                memory.resize_client(freed, 0);
                self.pieces.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backlog_keeps_the_order_and_counts_its_capacity() {
        let (mut memory, mut backlog) = (Memory::new(1 << 20), Backlog::default());
        let (mut pushed, mut removed) = (0_usize, 0_usize);
        for step in [7, 300, 1, 60_000, 2, 9, 20_000] {
            let bytes: Vec<u8> = (pushed..pushed + step).map(|offset| (offset % 251) as u8).collect();
            backlog.push(&bytes, &mut memory);
            pushed += step;
            let mut left = backlog.len() * 2 / 3;
            while left > 0 {
                assert_eq!(usize::from(backlog.front()[0]), removed % 251);
                let bytes = left.min(backlog.front().len());
                backlog.advance(bytes, &mut memory);
                (removed, left) = (removed + bytes, left - bytes);
            }
            assert_eq!(
                (memory.clients(), backlog.len()),
                (backlog.capacity(), pushed - removed),
                "the backlog should count its capacity and its bytes"
            );
            assert!(
                backlog.capacity() < backlog.len() + 2 * PIECE_BYTES_MAX,
                "at most the first and the last piece should be unused in part"
            );
        }
        let rest = backlog.take(&mut memory);
        assert_eq!((rest.len(), usize::from(rest[0])), (pushed - removed, removed % 251));
        assert_eq!(
            (memory.clients(), backlog.capacity(), backlog.is_empty()),
            (0, 0, true),
            "an empty backlog should hold no memory"
        );
    }

    #[test]
    fn many_small_pushes_share_pieces() {
        let (mut memory, mut backlog) = (Memory::new(1 << 20), Backlog::default());
        (0..10_000).for_each(|_| backlog.push(b"x", &mut memory));
        assert!(
            backlog.capacity() < 2 * 10_000,
            "small pushes should share pieces, so that at most half of the memory is unused: {}",
            backlog.capacity()
        );
    }
}
