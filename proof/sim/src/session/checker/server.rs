//! Checks of what servers and their applications do and observe.

use spillway_batch::CloseReason;
use spillway_transport::Time;
use spillway_wire::session::{Resumed, SessionId};

use super::Checker;
use crate::pattern::{bytes_of, first_wrong, reply_word, request_word};
use crate::session::check::Check;

impl Checker {
    /// A server begins a session.
    pub fn server_begins(&mut self, id: SessionId, answer: &Resumed) {
        let entry = self.entry(id);
        let previous_life = entry.server_life.replace(answer.life);
        entry.epoch_accepted = answer.epoch;
        if !entry.is_stale() {
            // Replies of the session's previous life are no longer delivered.
            (entry.replied, entry.replied_all, entry.closed_by_server) = (0, false, false);
        }
        if previous_life.is_some() {
            self.session_violation(Check::Epochs, id, "begins although the server already knows it");
        }
    }

    /// A session continues on another carrier.
    pub fn server_resumes(&mut self, id: SessionId, answer: &Resumed) {
        self.moves += 1;
        let entry = self.entry(id);
        let before = std::mem::replace(&mut entry.epoch_accepted, answer.epoch);
        let problem = if entry.server_life != Some(answer.life) {
            "resumes in a life that the server does not know"
        } else if answer.epoch <= before {
            "resumes with an old epoch"
        } else {
            return;
        };
        self.session_violation(Check::Epochs, id, problem);
    }

    /// The server's application receives bytes.
    pub fn server_reads(&mut self, id: SessionId, bytes: &[u8]) {
        self.delivered += bytes.len() as u64;
        let entry = self.entry(id);
        let wrong = first_wrong(request_word, entry.token, entry.read_by_server, bytes);
        entry.read_by_server += bytes.len() as u64;
        let problem = if wrong.is_some() {
            "wrong request bytes"
        } else if entry.read_by_server > entry.written {
            "more request bytes than were written"
        } else if entry.closed_by_server {
            "request bytes after the server closed"
        } else if entry.client_life != entry.server_life {
            "request bytes for another life"
        } else {
            return;
        };
        self.session_violation(Check::Requests, id, problem);
    }

    /// `unread` request bytes wait for the server's application.
    pub fn server_holds(&mut self, id: SessionId, unread: u64) {
        if unread > u64::from(self.server_limits.stream.window_bytes) {
            self.session_violation(Check::Memory, id, "unread request bytes exceed the server's window");
        }
    }

    /// The server's application receives the end of the requests.
    pub fn server_sees_end(&mut self, id: SessionId) {
        let entry = self.entry(id);
        if !entry.is_reset && (!entry.finished || entry.read_by_server != entry.written) {
            self.session_violation(Check::Ends, id, "its requests ended too early");
        }
    }

    /// The server closes the session, or its client has closed it, because of a protocol violation.
    pub fn server_sees_protocol_error(&mut self, id: SessionId, reason: CloseReason) {
        // A session that began with a replayed message may receive any control message.
        if !self.entry(id).is_stale() {
            self.session_violation(Check::Rules, id, &format!("it was closed with the reason {reason:?}"));
        }
    }

    /// The next `bytes_max` bytes of replies for the server's application to write.
    pub fn reply(&mut self, id: SessionId, bytes_max: u64) -> Vec<u8> {
        let entry = self.entry(id);
        bytes_of(reply_word, entry.token, entry.replied, bytes_max)
    }

    /// The server's session port accepted this many bytes.
    pub fn replied(&mut self, id: SessionId, bytes: u64) {
        let kept_bytes_max = self.server_limits.stream.kept_bytes_max as u64;
        let entry = self.entry(id);
        entry.replied += bytes;
        // The sender keeps bytes until they have arrived.
        if entry.replied.saturating_sub(entry.read_by_client) > kept_bytes_max
            && !entry.is_reset
            && !entry.closed_by_client
        {
            self.session_violation(Check::Memory, id, "the server keeps more bytes for it than its bound");
        }
    }

    /// The server's application ends its replies.
    pub fn server_finishes(&mut self, id: SessionId) {
        self.entry(id).replied_all = true;
    }

    /// The server's application closes.
    pub fn server_closes(&mut self, id: SessionId, resets: bool) {
        let entry = self.entry(id);
        if !entry.is_stale() {
            entry.closed_by_server = true;
            entry.replied_all = true;
            entry.is_reset |= resets;
        }
    }

    /// The server answers an opening message from its record of the session's end.
    pub fn server_repeats_end(&mut self, id: SessionId, answer: &Resumed) {
        let entry = self.entry(id);
        let before = std::mem::replace(&mut entry.epoch_accepted, answer.epoch);
        if answer.epoch <= before || entry.server_life.is_some() {
            self.session_violation(
                Check::Epochs,
                id,
                "the server repeats its end for an old epoch, or while it is open",
            );
        }
    }

    /// The server answers an opening message with *gone*.
    pub fn server_answers_gone(&mut self, now: Time, id: SessionId) {
        let is_remembered = self.ended.must_be_recorded(now, id, self.server_limits.sessions_max);
        self.entry(id).may_be_forgotten |= !is_remembered;
    }

    /// The server's process ends, and all its sessions are lost.
    pub fn server_dies(&mut self, known: impl Iterator<Item = SessionId>) {
        known.for_each(|id| self.server_loses(id, true));
        self.ended.clear();
    }

    /// The server removes the session. `lost`: at least one of its ends had not closed it.
    pub fn server_forgets(&mut self, now: Time, id: SessionId, lost: bool) {
        let is_lost_copy = lost && self.entry(id).is_stale();
        self.ended.add(now, now + self.server_limits.linger, id, is_lost_copy);
        self.server_loses(id, lost);
    }

    fn server_loses(&mut self, id: SessionId, lost: bool) {
        let entry = self.entry(id);
        if !entry.is_stale() {
            entry.was_forgotten |= lost;
        }
        entry.server_life = None;
    }
}
