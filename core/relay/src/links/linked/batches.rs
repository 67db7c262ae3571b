//! What a link sends: its batches, and the memory that they take.

use spillway_transport::{Chunk, Time, Transport};

use super::Linked;
use crate::memory::Memory;

/// A batch that has reached this size within a turn goes before the turn's end. Smaller ones wait for it: what
/// a turn sends leaves at its end anyway, and *S* can only grow when batches may exceed it.
pub(crate) const BATCH_BYTES: usize = 64 * 1024;

impl Linked {
    /// The transport takes no more: clients get no new grants.
    pub(crate) fn is_congested(&self) -> bool {
        self.unsent.is_some()
    }

    /// The batch is as large as it may be.
    pub(crate) fn is_full(&self) -> bool {
        self.opener.is_full()
    }

    /// Bytes gathered that the transport has not taken.
    pub(crate) fn pending(&self) -> usize {
        self.opener.pending() + self.unsent.as_ref().map_or(0, Chunk::len)
    }

    /// Brings the relay's memory up to date: a batch of one turn is not counted, what piles up behind it is.
    pub(crate) fn count(&mut self, memory: &mut Memory) {
        let counted = self.to_count();
        memory.link_changed(self.counted, counted);
        self.counted = counted;
    }

    /// The link is over: nothing of it counts any more.
    pub(crate) fn uncount(&self, memory: &mut Memory) {
        memory.link_changed(self.counted, 0);
    }

    pub(super) fn to_count(&self) -> usize {
        let held = self.opener.held() + self.unsent.as_ref().map_or(0, Chunk::capacity);
        let incomplete = self.opener.held_incomplete();
        let waiting = if self.pending() == 0 { 0 } else { (held - incomplete).saturating_sub(BATCH_BYTES) };
        waiting + incomplete
    }

    /// Sends a batch within a turn if it is a large one.
    pub(crate) fn transmit_large<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.opener.pending() >= BATCH_BYTES {
            self.transmit(now, out);
        }
    }

    /// Sends the batch that is due, if any and if there is room.
    pub(crate) fn transmit<T: Transport>(&mut self, now: Time, out: &mut T) {
        if let Some(chunk) = self.unsent.take() {
            self.unsent = self.offer(chunk, out);
        }
        if self.unsent.is_some() {
            self.opener.waits(now);
        } else if let Some(batch) = self.opener.poll_transmit(now) {
            if let Some(spent) = out.spent_chunk() {
                self.opener.recycle(spent);
            }
            self.unsent = self.offer(batch, out);
        }
    }

    /// Sends everything, whether due or not, for the last time.
    pub(crate) fn transmit_all<T: Transport>(&mut self, now: Time, out: &mut T) {
        if let Some(chunk) = self.unsent.take() {
            self.unsent = self.offer(chunk, out);
        }
        if self.unsent.is_none()
            && let Some(batch) = self.opener.flush(now)
        {
            self.unsent = self.offer(batch, out);
        }
    }

    /// Returns what the transport did not take. Its `Room` says when there is room again.
    fn offer<T: Transport>(&mut self, chunk: Chunk, out: &mut T) -> Option<Chunk> {
        let mut chunk = match out.send_chunk(self.conn, chunk) {
            Ok(()) => return None,
            Err(chunk) => chunk,
        };
        let taken = out.send(self.conn, chunk.as_slice());
        chunk.advance(taken);
        if chunk.is_empty() {
            self.opener.recycle(chunk);
            return None;
        }
        Some(chunk)
    }
}
