//! Checks of what clients and their applications do and observe.

use spillway_batch::CloseReason;
use spillway_wire::session::{Resumed, SessionId};

use super::Checker;
use super::entry::Entry;
use crate::pattern::{bytes_of, first_wrong, reply_word, request_word};
use crate::session::check::Check;

impl Checker {
    /// A client begins a session.
    pub fn begin(&mut self, id: SessionId) {
        self.open += 1;
        if self.sessions.insert(id, Entry::begun(id)).is_some() {
            self.session_violation(Check::Rules, id, "created twice: a bug of the simulator");
        }
    }

    /// The next `bytes_max` bytes for the client's application to write.
    pub fn request(&mut self, id: SessionId, bytes_max: u64) -> Vec<u8> {
        let entry = self.entry(id);
        bytes_of(request_word, entry.token, entry.written, bytes_max)
    }

    /// The client's driver accepted this many bytes.
    pub fn wrote(&mut self, id: SessionId, bytes: u64) {
        let kept_bytes_max = self.client_limits.kept_bytes_max as u64;
        let entry = self.entry(id);
        entry.written += bytes;
        // The sender keeps bytes until they have arrived.
        if entry.written.saturating_sub(entry.read_by_server) > kept_bytes_max
            && !entry.is_reset
            && !entry.closed_by_server
        {
            self.session_violation(Check::Memory, id, "its client keeps more bytes than its bound");
        }
    }

    /// The client's application ends its requests.
    pub fn client_finishes(&mut self, id: SessionId) {
        self.entry(id).finished = true;
    }

    /// The client's application closes.
    pub fn client_closes(&mut self, id: SessionId, resets: bool) {
        let entry = self.entry(id);
        entry.closed_by_client = true;
        entry.is_reset |= resets;
    }

    /// The client sends an opening message on a new carrier.
    pub fn client_opens(&mut self, id: SessionId, epoch: u32) {
        let entry = self.entry(id);
        let before = std::mem::replace(&mut entry.epoch_sent, epoch);
        if epoch <= before {
            self.session_violation(Check::Epochs, id, "its client repeats an epoch");
        }
    }

    /// The client accepts an answer to its opening message.
    pub fn client_attaches(&mut self, id: SessionId, answer: &Resumed) {
        let entry = self.entry(id);
        let life = *entry.client_life.get_or_insert(answer.life);
        entry.acknowledged = entry.acknowledged.max(answer.position.received);
        if answer.epoch != entry.epoch_sent || answer.life != life {
            self.session_violation(Check::Epochs, id, "its client accepts another carrier's answer");
        }
    }

    /// The client receives an acknowledgement of `received` bytes.
    pub fn client_sees_acknowledged(&mut self, id: SessionId, received: u64) {
        let entry = self.entry(id);
        entry.acknowledged = entry.acknowledged.max(received);
    }

    /// The client's application receives bytes.
    pub fn client_reads(&mut self, id: SessionId, bytes: &[u8]) {
        self.delivered += bytes.len() as u64;
        let entry = self.entry(id);
        let wrong = first_wrong(reply_word, entry.token, entry.read_by_client, bytes);
        entry.read_by_client += bytes.len() as u64;
        let problem = if wrong.is_some() {
            "wrong reply bytes"
        } else if entry.read_by_client > entry.replied {
            "more reply bytes than were sent"
        } else if entry.closed_by_client {
            "reply bytes after the client closed"
        } else {
            return;
        };
        self.session_violation(Check::Replies, id, problem);
    }

    /// `unread` reply bytes wait for the client's application.
    pub fn client_holds(&mut self, id: SessionId, unread: u64) {
        if unread > u64::from(self.client_limits.window_bytes) {
            self.session_violation(Check::Memory, id, "unread reply bytes exceed the client's window");
        }
    }

    /// The client's application receives the end of the replies, or the server's close in good order.
    pub fn client_sees_end(&mut self, id: SessionId) {
        let entry = self.entry(id);
        entry.saw_reply_end = true;
        if !entry.is_reset && (!entry.replied_all || entry.read_by_client != entry.replied) {
            self.session_violation(Check::Ends, id, "its replies ended too early");
        }
    }

    /// The client receives *gone*, and reports that `acknowledged` bytes were acknowledged.
    pub fn client_sees_gone(&mut self, id: SessionId, acknowledged: u64) {
        self.gone += 1;
        let entry = self.entry(id);
        let is_first = !std::mem::replace(&mut entry.was_reported_gone, true);
        let is_known =
            entry.server_life.is_some_and(|life| entry.client_life.is_none_or(|answered| answered == life));
        // The server cannot confirm all bytes of a session that was reset, or closed before all had arrived.
        let lacks_bytes = entry.is_reset || entry.read_by_server < entry.written;
        let was_lost = entry.was_forgotten || entry.may_be_forgotten || lacks_bytes;
        let problem = if is_known && !entry.ended_at_client {
            "gone, but the server knows it"
        } else if !was_lost {
            "gone, but the server remembers that it received all"
        } else if acknowledged != entry.acknowledged && !entry.is_reset {
            "gone, with another offset than the acknowledged one"
        } else if acknowledged > entry.read_by_server && !entry.is_reset {
            "gone, with more bytes acknowledged than received"
        } else if !is_first {
            "gone twice"
        } else {
            return self.end(id);
        };
        self.session_violation(Check::Gone, id, problem);
        self.end(id);
    }

    /// The client's driver detects that the server's process has ended.
    pub fn client_finds_absent(&mut self, id: SessionId, acknowledged: u64) {
        // The records of ended sessions are lost with their process.
        let is_remembered = self.ended.contains(id);
        self.entry(id).may_be_forgotten |= !is_remembered;
        self.client_sees_gone(id, acknowledged);
    }

    /// The client's driver gives the session up: no carrier worked for too long, or the server's port refuses
    /// and no server has ever answered.
    pub fn client_gives_up(&mut self, id: SessionId) {
        self.end(id);
    }

    /// The session has ended at its client.
    pub fn client_ended(&mut self, id: SessionId) {
        let entry = self.entry(id);
        let is_complete = !entry.ended_at_client && entry.saw_reply_end && !entry.is_reset;
        let ends_too_early = !entry.ended_at_client
            && entry.closed_in_order()
            && !entry.closed_by_server
            && entry.read_by_server < entry.written;
        if ends_too_early {
            self.session_violation(Check::Closes, id, "closed in order, but the server has not received all");
        }
        self.completed += u64::from(is_complete);
        self.end(id);
    }

    fn end(&mut self, id: SessionId) {
        if !std::mem::replace(&mut self.entry(id).ended_at_client, true) {
            self.open -= 1;
        }
    }

    /// Whether the client has closed the session in order.
    pub fn has_closed_in_order(&self, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(Entry::closed_in_order)
    }

    /// The client's carrier was closed because of a protocol violation.
    pub fn client_sees_protocol_error(&mut self, id: SessionId, reason: CloseReason) {
        self.session_violation(
            Check::Rules,
            id,
            &format!("its client received a close with the reason {reason:?}"),
        );
    }
}
