//! Output to a library client, and the client's memory.

use core::time::Duration;

use spillway_batch::Control;
use spillway_transport::{Conn, Time, Transport};

use super::{CLIENT_ID, LibraryClient};
use crate::clients::relayed::{ControlAction, RelayedConn};
use crate::memory::{Held, Memory};

impl LibraryClient {
    /// Adds data of the server to the output. False: the data is ignored, because one end of the connection has closed.
    #[must_use]
    pub(crate) fn reply(&mut self, bytes: &[u8], memory: &mut Memory) -> bool {
        if !self.relayed.as_ref().is_some_and(RelayedConn::takes_replies) {
            return false;
        }
        self.bytes_out += bytes.len() as u64;
        self.acceptor.data(CLIENT_ID, bytes);
        self.count(memory);
        true
    }

    /// Handles a control message of the server, and adds it to the output.
    pub(crate) fn handle_server_control(&mut self, control: Control) -> ControlAction {
        let relayed = self.relayed.as_mut();
        let action = relayed.map_or(ControlAction::Ignore, |relayed| relayed.handle_server_control(&control));
        if action != ControlAction::Ignore {
            self.acceptor.control(CLIENT_ID, control);
        }
        action
    }

    /// Adds a control message of the relay itself to the output.
    pub(crate) fn send_control(&mut self, control: Control) {
        self.acceptor.control(CLIENT_ID, control);
    }

    /// Bytes of output that the transport has not taken.
    pub(crate) fn pending(&self) -> usize {
        self.acceptor.pending() + self.unsent.len()
    }

    /// Schedules output for the end of the turn. False: it was scheduled already.
    #[must_use]
    pub(crate) fn set_dirty(&mut self, memory: &mut Memory) -> bool {
        self.count(memory);
        !core::mem::replace(&mut self.is_dirty, true)
    }

    /// Sends as much output as the transport takes. Call this again at the transport's `Room` event.
    pub(crate) fn transmit<T: Transport>(&mut self, now: Time, conn: Conn, memory: &mut Memory, out: &mut T) {
        self.is_dirty = false;
        let next_chunk = |sent_chunk| {
            self.acceptor.recycle(sent_chunk);
            self.acceptor.flush()
        };
        self.unsent.send_all_to(next_chunk, |bytes| {
            let taken = out.send(conn, bytes);
            self.sent += taken as u64;
            taken
        });
        self.note_unread(now, out.queued(conn));
        self.count(memory);
    }

    fn note_unread(&mut self, now: Time, queued: usize) {
        let pending = self.pending();
        self.unread.note(now, self.sent + pending as u64, pending + queued);
    }

    /// The client's memory in the relay. `queued`: bytes in the transport. Bytes of an incomplete record count, because
    /// they are freed only by the rest of the record or by the end of the link.
    pub(crate) fn held(&mut self, now: Time, queued: usize) -> Held {
        self.note_unread(now, queued);
        let record_age = self.acceptor.incomplete_since().map_or(Duration::ZERO, |since| now.since(since));
        Held {
            waiting_bytes: self.pending() + self.waiting.len() + self.acceptor.held_incomplete(),
            memory_bytes: self.allocated() + self.waiting.capacity(),
            age: self.unread.age(now).max(record_age),
        }
    }

    fn allocated(&self) -> usize {
        self.acceptor.held() + self.unsent.capacity()
    }

    /// Updates the relay's memory total. Empty output buffers that are kept for reuse are small and not counted.
    pub(crate) fn count(&mut self, memory: &mut Memory) {
        let held = if self.pending() == 0 { self.acceptor.held_incomplete() } else { self.allocated() };
        memory.resize_client(self.counted, held);
        self.counted = held;
    }
}
