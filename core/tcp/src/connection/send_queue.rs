//! The send queue and retransmission buffer: bytes of the application that the peer has not acknowledged.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use spillway_transport::Chunk;
use spillway_wire::{Bytes, Chunks};

use crate::narrow::in_memory;
use crate::seq::Seq;

/// Small sends are gathered in chunks of this size.
const GATHER_BYTES: usize = 16 * 1024;
/// Number of spent chunks kept for reuse; further ones are freed.
const SPENT_MAX: usize = 64;
/// A connection keeps its empty buffer if the buffer is no larger than this.
const KEPT_BYTES: usize = 1024;
/// Spent chunks larger than this are freed, so that memory does not stay allocated after a burst.
const SPENT_BYTES_MAX: usize = 256 * 1024;

/// Bytes that are kept until they are acknowledged.
#[derive(Debug)]
struct Piece {
    from: Seq,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    /// Gathered from small sends; more may be appended.
    Open(Chunk),
    /// Passed by the application, and kept without a copy.
    Passed(Chunk),
    /// Imported: shared with the state of the connection that was moved here.
    Imported(Bytes),
}

impl Piece {
    #[inline]
    fn as_slice(&self) -> &[u8] {
        match &self.memory {
            Memory::Open(chunk) | Memory::Passed(chunk) => chunk.as_slice(),
            Memory::Imported(bytes) => bytes,
        }
    }

    fn end(&self) -> Seq {
        self.from + self.as_slice().len() as u64
    }

    /// Memory of the piece in bytes. Imported bytes count alone, without the rest of the state's buffer.
    fn capacity(&self) -> usize {
        match &self.memory {
            Memory::Open(chunk) | Memory::Passed(chunk) => chunk.capacity(),
            Memory::Imported(bytes) => bytes.len(),
        }
    }

    fn into_shared(self) -> Bytes {
        match self.memory {
            Memory::Open(chunk) | Memory::Passed(chunk) => {
                let (buffer, start) = chunk.into_buffer();
                Bytes::from(buffer).split_off(start)
            }
            Memory::Imported(bytes) => bytes,
        }
    }
}

/// The queued bytes, in order and without gaps.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    pieces: VecDeque<Piece>,
    /// Sequence number of the first byte held.
    start: Seq,
    /// Sequence number after the last byte.
    end: Seq,
    /// Capacity of all pieces, in bytes.
    capacity: usize,
}

impl SendQueue {
    pub(super) fn new(start: Seq) -> SendQueue {
        SendQueue { pieces: VecDeque::new(), start, end: start, capacity: 0 }
    }

    pub(super) fn start(&self) -> Seq {
        self.start
    }

    pub(super) fn end(&self) -> Seq {
        self.end
    }

    pub(super) fn len(&self) -> usize {
        in_memory(self.end - self.start) // bounded by the send buffer, or one chunk
    }

    /// Memory that holds queued bytes, in bytes. An empty buffer that is kept for later bytes does not count.
    pub(super) fn held(&self) -> usize {
        if self.start == self.end { 0 } else { self.capacity }
    }

    /// Appends a copy of these bytes.
    pub(super) fn push(&mut self, mut bytes: &[u8], spent: &mut SpentChunks) {
        if let Some(Piece { memory: Memory::Open(chunk), .. }) = self.pieces.back_mut()
            && chunk.len() + bytes.len() <= GATHER_BYTES
        {
            self.capacity += extend(chunk, bytes);
            self.end += bytes.len() as u64;
            return;
        }
        while !bytes.is_empty() {
            let Some(Piece { memory: Memory::Open(chunk), .. }) =
                self.pieces.back_mut().filter(|piece| piece.as_slice().len() < GATHER_BYTES)
            else {
                let chunk = spent.take().unwrap_or_default();
                self.capacity += chunk.capacity();
                self.pieces.push_back(Piece { from: self.end, memory: Memory::Open(chunk) });
                continue;
            };
            let (now, later) = bytes.split_at(bytes.len().min(GATHER_BYTES - chunk.len()));
            self.capacity += extend(chunk, now);
            self.end += now.len() as u64;
            bytes = later;
        }
    }

    /// Appends a chunk without copying it.
    pub(super) fn push_chunk(&mut self, chunk: Chunk) {
        self.push_piece(Memory::Passed(chunk));
    }

    /// Appends bytes of an imported queue without copying them.
    pub(super) fn push_shared(&mut self, bytes: Bytes) {
        self.push_piece(Memory::Imported(bytes));
    }

    fn push_piece(&mut self, memory: Memory) {
        let piece = Piece { from: self.end, memory };
        self.end = piece.end();
        self.capacity += piece.capacity();
        self.pieces.push_back(piece);
    }

    /// All held bytes, without a copy.
    pub(super) fn into_chunks(self) -> Chunks {
        let start = self.start;
        let held = self.pieces.into_iter().map(|piece| {
            let acknowledged = in_memory(start.saturating_sub(piece.from));
            let mut bytes = piece.into_shared();
            bytes.split_off(acknowledged.min(bytes.len()))
        });
        held.collect()
    }

    /// Releases everything before `seq`, which is acknowledged.
    pub(super) fn acknowledge(&mut self, seq: Seq, spent: &mut SpentChunks) {
        self.start = seq.clamp(self.start, self.end);
        if self.start == self.end
            && self.pieces.len() == 1
            && let Some(Piece { from, memory: Memory::Open(chunk) }) = self.pieces.front_mut()
            && chunk.capacity() <= KEPT_BYTES
        {
            chunk.clear();
            *from = self.end;
            return;
        }
        while self.pieces.front().is_some_and(|piece| piece.end() <= self.start) {
            if let Some(piece) = self.pieces.pop_front() {
                self.capacity -= piece.capacity();
                if let Memory::Open(chunk) | Memory::Passed(chunk) = piece.memory {
                    spent.put(chunk);
                }
            }
        }
    }

    /// Copies bytes from `from` on into a segment. All of them must be held.
    pub(super) fn copy(&self, from: Seq, out: &mut [u8]) {
        debug_assert!(
            from >= self.start && from + out.len() as u64 <= self.end,
            "only held bytes should be copied"
        );
        if let Some(piece) = self.pieces.front()
            && let Some(bytes) = piece.as_slice().get(in_memory(from - piece.from)..)
            && let Some(bytes) = bytes.get(..out.len())
        {
            return out.copy_from_slice(bytes);
        }
        let first = if self.pieces.front().is_some_and(|piece| from < piece.end()) {
            0
        } else {
            self.pieces.partition_point(|piece| piece.end() <= from)
        };
        let (mut seq, mut copied) = (from, 0);
        for piece in self.pieces.range(first..) {
            if copied == out.len() {
                return;
            }
            let bytes = &piece.as_slice()[in_memory(seq - piece.from)..];
            let count = bytes.len().min(out.len() - copied);
            out[copied..copied + count].copy_from_slice(&bytes[..count]);
            (seq, copied) = (seq + count as u64, copied + count);
        }
    }
}

/// Appends bytes, and returns the growth of the chunk's memory.
fn extend(chunk: &mut Chunk, bytes: &[u8]) -> usize {
    let before = chunk.capacity();
    chunk.buffer().extend_from_slice(bytes);
    chunk.capacity() - before
}

/// Buffers for reuse, shared by all connections of a stack.
#[derive(Debug, Default)]
pub(crate) struct SpentChunks(Vec<Chunk>);

impl SpentChunks {
    pub(crate) fn take(&mut self) -> Option<Chunk> {
        self.0.pop()
    }

    fn put(&mut self, mut chunk: Chunk) {
        chunk.clear();
        if self.0.len() < SPENT_MAX && chunk.buffer().capacity() <= SPENT_BYTES_MAX {
            self.0.push(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_acknowledged_chunk_is_returned_for_reuse_without_a_copy() {
        let mut spent = SpentChunks::default();
        let mut queue = SendQueue::new(100);
        let buffer = vec![7; 5000];
        let pointer = buffer.as_ptr();
        queue.push_chunk(Chunk::from(buffer));
        queue.acknowledge(5099, &mut spent);
        assert!(spent.take().is_none(), "the chunk should be kept while one byte is not acknowledged");
        queue.acknowledge(5100, &mut spent);
        let mut returned = spent.take().expect("the acknowledged chunk");
        assert!(
            returned.is_empty() && core::ptr::eq(returned.buffer().as_ptr(), pointer),
            "the chunk should be returned without a copy"
        );
    }

    proptest! {
        #[test]
        fn the_queue_agrees_with_a_plain_buffer(steps in prop::collection::vec((0_u8..6, 0_usize..40_000), 1..60)) {
            let mut spent = SpentChunks::default();
            let mut queue = SendQueue::new(7);
            let (mut sent, mut acknowledged) = (Vec::new(), 0);
            for (kind, size) in steps {
                let bytes: Vec<u8> = (0..size).map(|i| (sent.len() + i) as u8).collect();
                match kind {
                    0 => { queue.push(&bytes, &mut spent); sent.extend_from_slice(&bytes); }
                    1 if size > 0 => { sent.extend_from_slice(&bytes); queue.push_chunk(Chunk::from(bytes)); }
                    2 if size > 0 => { sent.extend_from_slice(&bytes); queue.push_shared(bytes.into()); }
                    3 => {
                        let chunks = core::mem::take(&mut queue).into_chunks();
                        prop_assert_eq!(chunks.to_vec(), &sent[acknowledged..]);
                        queue = SendQueue::new(7 + acknowledged as u64);
                        chunks.chunks().iter().for_each(|chunk| queue.push_shared(chunk.clone()));
                    }
                    4 => {
                        acknowledged = (acknowledged + size).min(sent.len());
                        queue.acknowledge(7 + acknowledged as u64, &mut spent);
                    }
                    _ => {
                        let from = acknowledged + size.min(sent.len() - acknowledged) / 2;
                        let mut out = vec![0; (sent.len() - from).min(1460)];
                        queue.copy(7 + from as u64, &mut out);
                        prop_assert_eq!(&out[..], &sent[from..from + out.len()]);
                    }
                }
                prop_assert_eq!(queue.len(), sent.len() - acknowledged);
                let mut held = vec![0; queue.len()];
                queue.copy(queue.start(), &mut held);
                prop_assert_eq!(&held[..], &sent[acknowledged..]);
            }
        }
    }
}
