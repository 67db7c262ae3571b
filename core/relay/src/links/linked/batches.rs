//! Batches of a link, and their memory.

use spillway_transport::{Chunk, Time, Transport};

use super::Linked;
use crate::memory::Memory;

/// A batch that reaches this size leaves before the end of the turn. Smaller batches wait for the end of the turn,
/// because the adaptive policy raises its size threshold *S* only after batches larger than *S*.
pub(crate) const BATCH_BYTES: usize = 64 * 1024;

impl Linked {
    /// Whether a part of the last batch still waits for the transport. Until the transport has taken it, clients get no
    /// grants.
    pub(crate) fn is_congested(&self) -> bool {
        self.unsent.is_some()
    }

    /// Whether the pending batch has reached its limit.
    pub(crate) fn is_full(&self) -> bool {
        self.opener.is_full()
    }

    /// Bytes of batches that the transport has not taken.
    pub(crate) fn pending(&self) -> usize {
        self.opener.pending() + self.unsent.as_ref().map_or(0, Chunk::len)
    }

    /// Updates the relay's memory total. A link counts with its memory beyond one batch of [`BATCH_BYTES`],
    /// and with incomplete records.
    pub(crate) fn count(&mut self, memory: &mut Memory) {
        let counted = self.bytes_to_count();
        memory.resize_link(self.counted, counted);
        self.counted = counted;
    }

    pub(crate) fn release_memory(&self, memory: &mut Memory) {
        memory.resize_link(self.counted, 0);
    }

    pub(super) fn bytes_to_count(&self) -> usize {
        let held = self.opener.held() + self.unsent.as_ref().map_or(0, Chunk::capacity);
        let incomplete = self.opener.held_incomplete();
        let waiting = if self.pending() == 0 { 0 } else { (held - incomplete).saturating_sub(BATCH_BYTES) };
        waiting + incomplete
    }

    /// Sends the batch within a turn if it has reached [`BATCH_BYTES`].
    pub(crate) fn transmit_large<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.opener.pending() >= BATCH_BYTES {
            self.transmit(now, out);
        }
    }

    /// Sends the batch if it is due and the transport has room.
    pub(crate) fn transmit<T: Transport>(&mut self, now: Time, out: &mut T) {
        if let Some(chunk) = self.unsent.take() {
            self.unsent = self.offer(chunk, out);
        }
        if self.unsent.is_some() {
            self.opener.start_waiting(now);
        } else if let Some(batch) = self.opener.poll_transmit(now) {
            if let Some(sent_chunk) = out.take_recycled_chunk() {
                self.opener.recycle(sent_chunk);
            }
            self.unsent = self.offer(batch, out);
        }
    }

    /// Sends everything, due or not, before the link is closed. Bytes that the transport does not take are lost.
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

    /// Returns the bytes that the transport did not take. Offer them again at the transport's `Room` event.
    fn offer<T: Transport>(&mut self, chunk: Chunk, out: &mut T) -> Option<Chunk> {
        match out.offer_chunk(self.conn, chunk) {
            Ok(spent) => {
                if let Some(spent) = spent {
                    self.opener.recycle(spent);
                }
                None
            }
            Err(rest) => Some(rest),
        }
    }
}
