//! The sending direction as the application uses it: bytes for the send queue, its room, and reports of acknowledged
//! bytes.

use spillway_transport::Chunk;

use super::Connection;
use super::send_queue::SpentChunks;
use crate::narrow::in_memory;
use crate::seq::FIRST;
use crate::settings::Settings;

impl Connection {
    /// Free room of the send buffer in bytes; 0 while the connection cannot send.
    pub(crate) fn room(&self, settings: &Settings) -> usize {
        if self.fin.is_some() || self.is_lost() || !self.is_opened {
            return 0;
        }
        settings.send_buffer_bytes.saturating_sub(self.queue.len())
    }

    /// Whether a quarter of the send buffer is free, or the queue is empty.
    pub(super) fn has_much_room(&self, settings: &Settings) -> bool {
        self.queue.len() == 0 || self.room(settings) >= settings.send_buffer_bytes / 4
    }

    /// Queues as many bytes as fit, and returns their number.
    pub(crate) fn send(&mut self, settings: &Settings, spent: &mut SpentChunks, bytes: &[u8]) -> usize {
        let accepted = bytes.len().min(self.room(settings));
        self.queue.push(&bytes[..accepted], spent);
        if accepted < bytes.len() {
            self.reports.want_room();
        }
        accepted
    }

    /// Queues a whole chunk, or returns it.
    pub(crate) fn send_chunk(&mut self, settings: &Settings, chunk: Chunk) -> Result<(), Chunk> {
        let room = self.room(settings);
        if chunk.is_empty() && room > 0 {
            return Ok(());
        }
        if room == 0 || (chunk.len() > room && self.queue.len() > 0) {
            self.reports.want_room();
            return Err(chunk);
        }
        self.queue.push_chunk(chunk);
        Ok(())
    }

    /// Requests a `Room` event for the time when a quarter of the send buffer is free.
    pub(crate) fn want_room(&mut self) {
        self.reports.want_room();
    }

    /// Switches reports of acknowledged bytes on or off.
    pub(crate) fn watch(&mut self, is_watched: bool) {
        self.reports.watch(is_watched);
    }

    /// The stream offset up to which the peer has acknowledged this end's bytes.
    pub(super) fn acknowledged_offset(&self) -> u64 {
        let una = self.recovery.una().min(self.queue.end());
        una.saturating_sub(FIRST + 1)
    }

    /// The number of queued bytes that were never sent.
    pub(crate) fn queued(&self) -> usize {
        in_memory(self.queue.end().saturating_sub(self.recovery.nxt().max(self.queue.start())))
    }

    /// Memory of the send queue, in bytes.
    pub(crate) fn held(&self) -> usize {
        self.queue.held()
    }

    /// Updates this connection's share of the stack's total of send queue memory.
    #[inline]
    pub(crate) fn count_held(&mut self, total: &mut usize) {
        self.held_share.update(self.queue.held(), total);
    }

    pub(crate) fn uncount_held(&mut self, total: &mut usize) {
        self.held_share.remove(total);
    }
}
