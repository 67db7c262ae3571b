//! What a library client is sent, and what of it waits here.

use core::time::Duration;

use spillway_batch::Control;
use spillway_transport::{Conn, Time, Transport};

use super::{CLIENT_ID, LibraryClient};
use crate::clients::passage::{Passage, Step};
use crate::memory::{Held, Memory};

impl LibraryClient {
    /// Data of the server. False: its connection takes none any more.
    #[must_use]
    pub(crate) fn reply(&mut self, bytes: &[u8], memory: &mut Memory) -> bool {
        if !self.passage.as_ref().is_some_and(Passage::takes_replies) {
            return false;
        }
        self.bytes_out += bytes.len() as u64;
        self.acceptor.data(CLIENT_ID, bytes);
        self.count(memory);
        true
    }

    /// A control message of the server.
    pub(crate) fn server_says(&mut self, control: Control) -> Step {
        let step = self.passage.as_mut().map_or(Step::PassOver, |passage| passage.server_says(&control));
        if step != Step::PassOver {
            self.acceptor.control(CLIENT_ID, control);
        }
        step
    }

    /// A control message of ours about its connection.
    pub(crate) fn say(&mut self, control: Control) {
        self.acceptor.control(CLIENT_ID, control);
    }

    /// Bytes that wait for it here.
    pub(crate) fn pending(&self) -> usize {
        self.acceptor.pending() + self.unsent.len()
    }

    /// It has something to be sent at the end of the turn. False: that was known.
    #[must_use]
    pub(crate) fn set_dirty(&mut self, memory: &mut Memory) -> bool {
        self.count(memory);
        !core::mem::replace(&mut self.is_dirty, true)
    }

    /// Sends what waits, as far as there is room; the transport's `Room` says when there is more.
    pub(crate) fn transmit<T: Transport>(&mut self, now: Time, conn: Conn, memory: &mut Memory, out: &mut T) {
        self.is_dirty = false;
        let next = |spent| {
            self.acceptor.recycle(spent);
            self.acceptor.flush()
        };
        self.unsent.send_all_to(next, |bytes| {
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

    /// What it holds. `queued`: bytes in the transport. Bytes of an incomplete record count, because only its rest, or the end
    /// of the link, frees them.
    pub(crate) fn held(&mut self, now: Time, queued: usize) -> Held {
        self.note_unread(now, queued);
        let withheld = self.acceptor.incomplete_since().map_or(Duration::ZERO, |since| now.since(since));
        Held {
            waits: self.pending() + self.waiting.len() + self.acceptor.held_incomplete(),
            bytes: self.held_for_it() + self.waiting.capacity(),
            age: self.unread.age(now).max(withheld),
        }
    }

    fn held_for_it(&self) -> usize {
        self.acceptor.held() + self.unsent.capacity()
    }

    /// Brings the relay's memory up to date. What is kept for reuse while nothing waits is next to nothing.
    pub(crate) fn count(&mut self, memory: &mut Memory) {
        let held = if self.pending() == 0 { self.acceptor.held_incomplete() } else { self.held_for_it() };
        memory.changed(self.counted, held);
        self.counted = held;
    }
}
