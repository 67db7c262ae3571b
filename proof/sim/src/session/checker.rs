//! Checks all sessions, outside the code under test: the bytes that both applications send and receive, and
//! the messages that open, resume and end sessions.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use spillway_batch::CloseReason;
use spillway_session::{StreamLimits, TableLimits};
use spillway_transport::Time;
use spillway_wire::session::{Resumed, SessionId};

use super::check::{Check, Violation};
use crate::pattern::{bytes_of, first_wrong, reply_word, request_word};
use crate::violations::Violations;

/// One session, as both applications see it.
#[derive(Clone, Debug, Default)]
struct Entry {
    token: u64,
    written: u64,
    finished: bool,
    closed_by_client: bool,
    /// Reset by the client or by the server.
    is_reset: bool,
    read_by_server: u64,
    replied: u64,
    replied_all: bool,
    closed_by_server: bool,
    read_by_client: u64,
    /// The client has received the end of the replies.
    saw_reply_end: bool,
    /// Epoch of the client's last opening message.
    epoch_sent: u32,
    /// Epoch of the last opening message that the present server process accepted.
    epoch_accepted: u32,
    /// Life that the server gave the session; `None` while the server has no such session.
    server_life: Option<u64>,
    /// Life in the first answer that the client accepted.
    client_life: Option<u64>,
    /// Highest offset that a server acknowledged and the client received.
    acknowledged: u64,
    /// A server had the session and lost it: by a restart, or because the client did not return in time.
    was_forgotten: bool,
    /// A server answered *gone* when it no longer had to keep a record of the session's end.
    may_be_forgotten: bool,
    was_reported_gone: bool,
    ended_at_client: bool,
}

impl Entry {
    /// Whether the server's session is not the client's, because a delayed or replayed opening message began
    /// it. The application of such a session receives no bytes.
    fn is_stale(&self) -> bool {
        self.ended_at_client || (self.client_life.is_some() && self.client_life != self.server_life)
    }

    fn closed_in_order(&self) -> bool {
        self.closed_by_client && !self.is_reset
    }
}

/// All sessions, and the violations found.
#[derive(Debug)]
pub struct Checker {
    sessions: BTreeMap<SessionId, Entry>,
    violations: Violations<Violation>,
    /// The check that is switched off.
    check_off: Option<Check>,
    client_limits: StreamLimits,
    server_limits: TableLimits,
    /// Sessions that ended at the present server process, and until when it must keep a record of each end.
    ended: VecDeque<(Time, SessionId)>,
    /// Sessions of whose end the server has no record, because it has lost a copy of them since; see
    /// [`Checker::server_forgets`].
    lost_copies: BTreeSet<SessionId>,
    open: usize,
    /// Bytes delivered in both directions.
    pub delivered: u64,
    /// Sessions that ended in good order and complete.
    pub completed: u64,
    /// Sessions whose clients received *gone*.
    pub gone: u64,
    /// Resumptions on another carrier.
    pub moves: u64,
    /// Replayed opening messages, or answers to them, that were refused.
    pub copies_refused: u64,
    /// Replayed opening messages that arrived before their originals.
    pub copies_accepted: u64,
}

/// Shared by all applications of one world.
pub type SharedChecker = Rc<RefCell<Checker>>;

fn token_of(id: SessionId) -> u64 {
    let mut token = [0; 8];
    token.copy_from_slice(&id.0[..8]);
    u64::from_le_bytes(token)
}

impl Checker {
    /// A checker without sessions. The limits bound each end of a session; the check `check_off` is switched off.
    pub fn new(client_limits: StreamLimits, server_limits: TableLimits, check_off: Option<Check>) -> Checker {
        Checker {
            sessions: BTreeMap::new(),
            violations: Violations::default(),
            check_off,
            client_limits,
            server_limits,
            ended: VecDeque::new(),
            lost_copies: BTreeSet::new(),
            open: 0,
            delivered: 0,
            completed: 0,
            gone: 0,
            moves: 0,
            copies_refused: 0,
            copies_accepted: 0,
        }
    }

    /// Records a violation, unless the check is switched off.
    pub fn violation(&mut self, check: Check, what: String) {
        if self.check_off != Some(check) {
            self.violations.push(Violation { check, what });
        }
    }

    /// The first violations found; later ones are dropped.
    pub fn violations(&self) -> &[Violation] {
        self.violations.as_slice()
    }

    /// Sessions begun so far.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Sessions that have not ended at their clients.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Grows with every delivered byte, every ended session and every move.
    pub fn progress(&self) -> u64 {
        self.delivered + self.completed + self.gone + self.moves
    }

    fn entry(&mut self, id: SessionId) -> &mut Entry {
        self.sessions.entry(id).or_default()
    }

    fn session_violation(&mut self, check: Check, id: SessionId, problem: &str) {
        let entry = self.entry(id).clone();
        self.violation(check, format!("session {id:?}: {problem}: {entry:?}"));
    }

    /// A client begins a session.
    pub fn begin(&mut self, id: SessionId) {
        self.open += 1;
        let entry = Entry { token: token_of(id), ..Entry::default() };
        if self.sessions.insert(id, entry).is_some() {
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
        let is_remembered = self.ended.iter().any(|(_, ended)| *ended == id);
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
        let remembered_until =
            self.ended.iter().rev().find(|(_, ended)| *ended == id).map(|(until, _)| *until);
        // A server records at most `sessions_max` ended sessions. Those of one turn have no known order.
        let ended_since = |until: Time| self.ended.iter().filter(|(other, _)| *other >= until).count();
        let is_remembered = remembered_until
            .is_some_and(|until| until > now && ended_since(until) <= self.server_limits.sessions_max)
            && !self.lost_copies.contains(&id);
        self.entry(id).may_be_forgotten |= !is_remembered;
    }

    /// The server's process ends, and all its sessions are lost.
    pub fn server_dies(&mut self, known: impl Iterator<Item = SessionId>) {
        known.for_each(|id| self.server_loses(id, true));
        self.ended.clear();
    }

    /// The server removes the session. `lost`: at least one of its ends had not closed it.
    pub fn server_forgets(&mut self, now: Time, id: SessionId, lost: bool) {
        while self.ended.front().is_some_and(|(until, _)| *until <= now) {
            self.ended.pop_front();
        }
        self.ended.push_back((now + self.server_limits.linger, id));
        // A replayed *connect* may begin a copy of a session of whose end the server has no record. When the
        // server loses the copy, it keeps no record of its end, but the copy counts among the ended sessions.
        if lost && self.entry(id).is_stale() {
            self.lost_copies.insert(id);
        } else {
            self.lost_copies.remove(&id);
        }
        self.server_loses(id, lost);
    }

    fn server_loses(&mut self, id: SessionId, lost: bool) {
        let entry = self.entry(id);
        if !entry.is_stale() {
            entry.was_forgotten |= lost;
        }
        entry.server_life = None;
    }

    /// Records each session that has not ended as a violation, at most three.
    pub fn all_ended(&mut self) {
        let open = self.sessions.iter().filter(|(_, entry)| !entry.ended_at_client).map(|(id, _)| *id);
        let open: Vec<SessionId> = open.take(3).collect();
        open.into_iter().for_each(|id| self.session_violation(Check::Liveness, id, "has not ended"));
    }
}
