//! Replies to a plain client, and the credit that the server gets for them.

use spillway_transport::{Conn, Time, Transport};

use super::PlainClient;
use crate::links::Linked;
use crate::memory::Memory;

impl PlainClient {
    pub(crate) fn reply<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        bytes: &[u8],
        linked: &mut Linked,
        memory: &mut Memory,
        out: &mut T,
    ) {
        self.bytes_out += bytes.len() as u64;
        let taken = if self.replies.is_empty() { self.send(conn, bytes, out) } else { 0 };
        if taken < bytes.len() {
            self.replies.push(&bytes[taken..], memory);
        } else if let Some(window) = self.window.record_taken(now, taken, linked.window_bytes_max(), memory) {
            linked.raise_window(self.id, window);
        }
        if taken > 0 {
            self.give_credit(linked, taken);
        }
        self.note_unread(now, conn, out);
    }

    /// Sends as much as the transport takes, but lets it queue at most one window. Requests a `Room` event for the
    /// rest.
    fn send<T: Transport>(&self, conn: Conn, bytes: &[u8], out: &mut T) -> usize {
        let limit = self.window.bytes().saturating_sub(out.queued(conn));
        let taken = out.send(conn, &bytes[..bytes.len().min(limit)]);
        if taken < bytes.len() {
            out.want_room(conn);
        }
        taken
    }

    fn give_credit(&self, linked: &mut Linked, taken: usize) {
        let outcome = linked.consumed(self.id, taken);
        debug_assert_eq!(
            outcome,
            Ok(()),
            "credit should be returned only for bytes that the server has sent"
        );
    }

    /// The server has finished its stream.
    pub(crate) fn handle_server_finished<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        self.server_finished = true;
        if self.replies.is_empty() {
            out.finish(conn);
        }
    }

    /// The transport can take more bytes for the client.
    pub(crate) fn handle_client_room<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        linked: &mut Linked,
        memory: &mut Memory,
        out: &mut T,
    ) {
        while !self.replies.is_empty() {
            let offered = self.replies.front().len();
            let taken = self.send(conn, self.replies.front(), out);
            self.give_credit(linked, taken);
            self.replies.advance(taken, memory);
            if taken < offered {
                break;
            }
        }
        self.note_unread(now, conn, out);
        if self.server_finished && self.replies.is_empty() {
            out.finish(conn);
        }
        if self.is_paused {
            self.grant(now, conn, linked, memory, out);
        }
    }

    fn note_unread<T: Transport>(&mut self, now: Time, conn: Conn, out: &T) {
        self.unread.note(now, self.bytes_out, self.replies.len() + out.queued(conn));
    }
}
