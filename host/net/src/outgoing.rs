//! The queue of data that waits to be written to one connection.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};
use spillway_transport::Chunk;

/// Maximum size of a piece that gathers several small sends.
const GATHERED_BYTES_MAX: usize = 16 << 10;
/// Maximum number of pieces written in one call.
const PIECES_PER_CALL: usize = 16;

/// Buffers for reuse. The last one returned is used first, because it is likely to be in the CPU's cache.
#[derive(Debug, Default)]
pub struct Pool {
    small_chunks: Vec<Chunk>,
    chunks: Vec<Chunk>,
    /// Capacity of all chunks in the queues of connections, in bytes.
    held_by_all: usize,
}

impl Pool {
    const SMALL_CHUNKS_MAX: usize = 256;
    const CHUNKS_MAX: usize = 16;
    /// Larger buffers are freed, so that one huge message does not occupy memory permanently.
    const CHUNK_BYTES_MAX: usize = 256 << 10;

    /// Bytes of memory that the queues of all connections take.
    pub fn held_by_all(&self) -> usize {
        self.held_by_all
    }

    /// An empty chunk for reuse, if there is one.
    pub fn chunk(&mut self) -> Option<Chunk> {
        self.chunks.pop()
    }

    fn small_chunk(&mut self) -> Chunk {
        self.small_chunks.pop().unwrap_or_else(|| Chunk::with_capacity(2048))
    }

    fn recycle(&mut self, mut piece: Piece) {
        let capacity = piece.chunk.capacity();
        self.held_by_all -= capacity;
        piece.chunk.clear();
        if piece.is_gathered {
            if self.small_chunks.len() < Pool::SMALL_CHUNKS_MAX {
                self.small_chunks.push(piece.chunk);
            }
        } else if self.chunks.len() < Pool::CHUNKS_MAX && (1..=Pool::CHUNK_BYTES_MAX).contains(&capacity) {
            self.chunks.push(piece.chunk);
        }
    }
}

#[derive(Debug)]
struct Piece {
    chunk: Chunk,
    /// Small sends may be appended until a part of the piece has been written.
    is_gathered: bool,
    is_partly_sent: bool,
}

/// How a flush of the queue ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushEnd {
    /// Everything was written.
    Empty,
    /// The socket is not writable; an event will report when it is.
    Blocked,
    Failed(Errno),
}

/// The queue of one connection.
#[derive(Debug, Default)]
pub struct Outgoing {
    pieces: VecDeque<Piece>,
    bytes: usize,
    /// Capacity of all pieces, in bytes.
    held: usize,
}

impl Outgoing {
    /// Bytes in the queue.
    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Bytes of memory that the queue takes.
    pub fn held(&self) -> usize {
        self.held
    }

    /// A copy of the bytes in the queue.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes);
        self.pieces.iter().for_each(|piece| bytes.extend_from_slice(piece.chunk.as_slice()));
        bytes
    }

    /// Copies bytes to the end of the queue.
    pub fn gather(&mut self, bytes: &[u8], pool: &mut Pool) {
        if bytes.is_empty() {
            return;
        }
        self.bytes += bytes.len();
        let fits = |piece: &&mut Piece| {
            piece.is_gathered
                && !piece.is_partly_sent
                && piece.chunk.len() + bytes.len() <= GATHERED_BYTES_MAX
        };
        if let Some(piece) = self.pieces.back_mut().filter(fits) {
            let old_capacity = piece.chunk.capacity();
            piece.chunk.buffer().extend_from_slice(bytes);
            let grown = piece.chunk.capacity() - old_capacity;
            self.held += grown;
            pool.held_by_all += grown;
            return;
        }
        // A large send would enlarge a small buffer permanently, so it is written to a chunk of its own.
        let is_gathered = bytes.len() <= GATHERED_BYTES_MAX;
        let mut chunk = if is_gathered { pool.small_chunk() } else { pool.chunk().unwrap_or_default() };
        chunk.buffer().extend_from_slice(bytes);
        self.add(Piece { chunk, is_gathered, is_partly_sent: false }, pool);
    }

    fn add(&mut self, piece: Piece, pool: &mut Pool) {
        self.held += piece.chunk.capacity();
        pool.held_by_all += piece.chunk.capacity();
        self.pieces.push_back(piece);
    }

    /// Moves a chunk to the end of the queue.
    pub fn push(&mut self, chunk: Chunk, pool: &mut Pool) {
        let piece = Piece { chunk, is_gathered: false, is_partly_sent: false };
        if piece.chunk.is_empty() {
            pool.held_by_all += piece.chunk.capacity();
            pool.recycle(piece);
            return;
        }
        self.bytes += piece.chunk.len();
        self.add(piece, pool);
    }

    pub fn clear(&mut self, pool: &mut Pool) {
        self.bytes = 0;
        self.held = 0;
        self.pieces.drain(..).for_each(|piece| pool.recycle(piece));
    }

    /// Writes as much as the kernel accepts. Returns the number of bytes written, and how the flush ended.
    pub fn flush(&mut self, fd: BorrowedFd<'_>, pool: &mut Pool) -> (usize, FlushEnd) {
        let mut total = 0;
        loop {
            let written = match self.pieces.len() {
                0 => return (total, FlushEnd::Empty),
                1 => send(fd, self.pieces[0].chunk.as_slice(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT),
                _ => self.write_several(fd),
            };
            match written {
                Ok(bytes) => {
                    total += bytes;
                    self.advance(bytes, pool);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return (total, FlushEnd::Blocked),
                Err(error) => return (total, FlushEnd::Failed(error)),
            }
        }
    }

    fn write_several(&self, fd: BorrowedFd<'_>) -> Result<usize, Errno> {
        let mut slices = [IoSlice::new(&[]); PIECES_PER_CALL];
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(piece.chunk.as_slice());
            count += 1;
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(fd, &slices[..count], &mut SendAncillaryBuffer::default(), flags)
    }

    fn advance(&mut self, mut sent: usize, pool: &mut Pool) {
        self.bytes -= sent;
        while sent > 0 {
            let Some(front) = self.pieces.front_mut() else { return };
            let part = sent.min(front.chunk.len());
            front.chunk.advance(part);
            front.is_partly_sent = true;
            sent -= part;
            if front.chunk.is_empty()
                && let Some(piece) = self.pieces.pop_front()
            {
                self.held -= piece.chunk.capacity();
                pool.recycle(piece);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn numbered(from: usize, length: usize) -> Vec<u8> {
        (from..from + length).map(|i| (i % 251) as u8).collect()
    }

    #[test]
    fn order_of_small_sends_and_chunks_survives_partial_writes() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let (mut out, mut pool) = (Outgoing::default(), Pool::default());
        let (mut queued, mut received) = (0, Vec::new());
        for round in 0..400_usize {
            for length in [3, 200, 20_000 * (round % 3)] {
                out.gather(&numbered(queued, length), &mut pool);
                queued += length;
            }
            let mut chunk = pool.chunk().unwrap_or_default();
            chunk.buffer().extend(numbered(queued, 1 + 997 * (round % 7)));
            queued += chunk.len();
            out.push(chunk, &mut pool);
            let before = out.len();
            assert!(
                out.held() >= out.len() && out.held() == pool.held_by_all(),
                "the pool should count the buffers of its only queue"
            );
            let (sent, _) = out.flush(ours.as_fd(), &mut pool);
            assert_eq!(out.len(), before - sent);
            let mut buffer = vec![0; 30_000];
            if let Ok(count) = theirs.read(&mut buffer) {
                received.extend_from_slice(&buffer[..count]);
            }
        }
        while received.len() < queued {
            out.flush(ours.as_fd(), &mut pool);
            let mut buffer = vec![0; 300_000];
            if let Ok(count) = theirs.read(&mut buffer) {
                received.extend_from_slice(&buffer[..count]);
            }
        }
        assert!(out.is_empty());
        assert_eq!((out.held(), pool.held_by_all()), (0, 0));
        assert_eq!(received, numbered(0, queued));
        assert!(pool.small_chunks.len() <= Pool::SMALL_CHUNKS_MAX && pool.chunks.len() <= Pool::CHUNKS_MAX);
    }

    #[test]
    fn pool_is_bounded_and_frees_huge_buffers() {
        let (mut out, mut pool) = (Outgoing::default(), Pool::default());
        for _ in 0..Pool::SMALL_CHUNKS_MAX * 2 {
            out.push(Chunk::from(vec![0; 10]), &mut pool);
            out.gather(b"small", &mut pool);
        }
        out.push(Chunk::from(vec![0; 2 << 20]), &mut pool);
        out.clear(&mut pool);
        assert!(out.is_empty());
        assert_eq!((pool.small_chunks.len(), pool.chunks.len()), (Pool::SMALL_CHUNKS_MAX, Pool::CHUNKS_MAX));
        assert!(pool.chunks.iter_mut().all(|chunk| chunk.buffer().capacity() <= Pool::CHUNK_BYTES_MAX));
    }

    #[test]
    fn write_to_a_closed_peer_fails_without_a_signal() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let (mut out, mut pool) = (Outgoing::default(), Pool::default());
        out.gather(b"unread", &mut pool);
        assert_eq!(out.flush(ours.as_fd(), &mut pool), (0, FlushEnd::Failed(Errno::PIPE)));
    }
}
