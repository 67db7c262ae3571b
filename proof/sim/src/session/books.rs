//! The checker of all sessions, outside the code under test: it compares what the two applications sent and received,
//! and what passed on the wire.

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
    /// Reset, by the client or by the server.
    is_reset: bool,
    read_by_server: u64,
    replied: u64,
    replied_all: bool,
    closed_by_server: bool,
    read_by_client: u64,
    /// The client has received the end of the replies.
    complete: bool,
    /// Epoch of the client's last opening message.
    epoch_sent: u32,
    /// Epoch of the last opening message that the server accepted, in its present life.
    epoch_accepted: u32,
    /// The life that the server gave the session; `None` while no server knows the session.
    server_life: Option<u64>,
    /// The life in the first answer that the client accepted.
    client_life: Option<u64>,
    /// Highest offset that a server acknowledged and the client received.
    acknowledged: u64,
    /// A server knew the session and lost it: by a restart, or because the client did not return in time.
    was_forgotten: bool,
    /// A server refused with *gone* after it was allowed to forget how the session ended.
    is_long_over: bool,
    gone: bool,
    over: bool,
}

impl Entry {
    /// The server's session is not the client's: it began with a delayed or replayed opening message, and its
    /// application never receives anything.
    fn is_stale(&self) -> bool {
        self.over || (self.client_life.is_some() && self.client_life != self.server_life)
    }

    fn closed_in_order(&self) -> bool {
        self.closed_by_client && !self.is_reset
    }
}

/// All sessions, and the violations found.
#[derive(Debug)]
pub struct Books {
    sessions: BTreeMap<SessionId, Entry>,
    violations: Violations<Violation>,
    /// This check is off.
    blind: Option<Check>,
    clients: StreamLimits,
    server: TableLimits,
    /// Sessions that have ended at the present server, and until when the server remembers them.
    ended: VecDeque<(Time, SessionId)>,
    /// Sessions whose last end at the server was that of a copy; see [`Books::server_forgets`].
    lost_copies: BTreeSet<SessionId>,
    open: usize,
    /// Bytes delivered, both ways.
    pub delivered: u64,
    /// Sessions that ended complete.
    pub completed: u64,
    /// Sessions whose clients learned that they were *gone*.
    pub gone: u64,
    /// Resumptions on another carrier.
    pub moves: u64,
    /// Replayed opening messages, or answers to them, that were refused.
    pub copies_refused: u64,
    /// Opening messages that a replay delivered before the client did.
    pub copies_taken: u64,
}

/// Shared by all applications of one world.
pub type Shared = Rc<RefCell<Books>>;

fn token_of(id: SessionId) -> u64 {
    let mut token = [0; 8];
    token.copy_from_slice(&id.0[..8]);
    u64::from_le_bytes(token)
}

impl Books {
    /// A checker without sessions. `clients` and `server` bound each end of a session; the check `blind` is off.
    pub fn new(clients: StreamLimits, server: TableLimits, blind: Option<Check>) -> Books {
        Books {
            sessions: BTreeMap::new(),
            violations: Violations::default(),
            blind,
            clients,
            server,
            ended: VecDeque::new(),
            lost_copies: BTreeSet::new(),
            open: 0,
            delivered: 0,
            completed: 0,
            gone: 0,
            moves: 0,
            copies_refused: 0,
            copies_taken: 0,
        }
    }

    /// Records a violation, unless the check is off.
    pub fn violation(&mut self, check: Check, what: String) {
        if self.blind != Some(check) {
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

    fn wrong(&mut self, check: Check, id: SessionId, problem: &str) {
        let entry = self.entry(id).clone();
        self.violation(check, format!("session {id:?}: {problem}: {entry:?}"));
    }

    /// A client begins a session.
    pub fn begin(&mut self, id: SessionId) {
        self.open += 1;
        let entry = Entry { token: token_of(id), ..Entry::default() };
        if self.sessions.insert(id, entry).is_some() {
            self.wrong(Check::Rules, id, "made twice: a fault of the simulator");
        }
    }

    /// The bytes that the client's application writes next, at most `most`.
    pub fn request(&mut self, id: SessionId, most: u64) -> Vec<u8> {
        let entry = self.entry(id);
        bytes_of(request_word, entry.token, entry.written, most)
    }

    /// The client's driver took this many bytes.
    pub fn wrote(&mut self, id: SessionId, bytes: u64) {
        let most = self.clients.kept_bytes_max as u64;
        let entry = self.entry(id);
        entry.written += bytes;
        // Bytes that have not arrived are kept.
        if entry.written.saturating_sub(entry.read_by_server) > most
            && !entry.is_reset
            && !entry.closed_by_server
        {
            self.wrong(Check::Memory, id, "its client keeps more than its bound");
        }
    }

    /// The client's application writes no more.
    pub fn client_finishes(&mut self, id: SessionId) {
        self.entry(id).finished = true;
    }

    /// The client's application closes.
    pub fn client_closes(&mut self, id: SessionId, resets: bool) {
        let entry = self.entry(id);
        entry.closed_by_client = true;
        entry.is_reset |= resets;
    }

    /// The client sends an opening message on another carrier.
    pub fn client_opens(&mut self, id: SessionId, epoch: u32) {
        let entry = self.entry(id);
        let before = std::mem::replace(&mut entry.epoch_sent, epoch);
        if epoch <= before {
            self.wrong(Check::Epochs, id, "its client repeats an epoch");
        }
    }

    /// The client accepts an answer to its opening message.
    pub fn client_attaches(&mut self, id: SessionId, answer: &Resumed) {
        let entry = self.entry(id);
        let life = *entry.client_life.get_or_insert(answer.life);
        entry.acknowledged = entry.acknowledged.max(answer.position.received);
        if answer.epoch != entry.epoch_sent || answer.life != life {
            self.wrong(Check::Epochs, id, "its client accepts another carrier's answer");
        }
    }

    /// The client learns that the server has received `received` bytes.
    pub fn client_sees_acknowledged(&mut self, id: SessionId, received: u64) {
        let entry = self.entry(id);
        entry.acknowledged = entry.acknowledged.max(received);
    }

    /// The client's application gets bytes.
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
        self.wrong(Check::Replies, id, problem);
    }

    /// `unread` reply bytes wait for the client's application.
    pub fn client_holds(&mut self, id: SessionId, unread: u64) {
        if unread > u64::from(self.clients.window_bytes) {
            self.wrong(Check::Memory, id, "more waits for its client than the window");
        }
    }

    /// The client's application sees the end of the replies, or that the server closed in good order.
    pub fn client_sees_end(&mut self, id: SessionId) {
        let entry = self.entry(id);
        entry.complete = true;
        if !entry.is_reset && (!entry.replied_all || entry.read_by_client != entry.replied) {
            self.wrong(Check::Ends, id, "its replies ended too early");
        }
    }

    /// The client learns that its session is *gone*, and that the server had received `acknowledged` bytes.
    pub fn client_sees_gone(&mut self, id: SessionId, acknowledged: u64) {
        self.gone += 1;
        let entry = self.entry(id);
        let first = !std::mem::replace(&mut entry.gone, true);
        let knows = entry.server_life.is_some_and(|life| entry.client_life.is_none_or(|heard| heard == life));
        // Of a session that was reset, or closed by a server that lacked bytes, the server cannot confirm all.
        let lacks_some = entry.is_reset || entry.read_by_server < entry.written;
        let was_lost = entry.was_forgotten || entry.is_long_over || lacks_some;
        let problem = if knows && !entry.over {
            "gone, but the server knows it"
        } else if !was_lost {
            "gone, but the server remembers that it received all"
        } else if acknowledged != entry.acknowledged && !entry.is_reset {
            "gone, with another offset than was acknowledged"
        } else if acknowledged > entry.read_by_server && !entry.is_reset {
            "gone, with more acknowledged than was received"
        } else if !first {
            "gone twice"
        } else {
            return self.end(id);
        };
        self.wrong(Check::Gone, id, problem);
        self.end(id);
    }

    /// The client's driver concludes that the server's process has ended.
    pub fn client_finds_absent(&mut self, id: SessionId, acknowledged: u64) {
        // A dead process has lost what it remembered of ended sessions.
        let is_remembered = self.ended.iter().any(|(_, ended)| *ended == id);
        self.entry(id).is_long_over |= !is_remembered;
        self.client_sees_gone(id, acknowledged);
    }

    /// The client's driver gives the session up: no carrier worked for too long, or no server has ever answered and
    /// its port refuses.
    pub fn client_gives_up(&mut self, id: SessionId) {
        self.end(id);
    }

    /// The client's end is over.
    pub fn client_over(&mut self, id: SessionId) {
        let entry = self.entry(id);
        let completes = !entry.over && entry.complete && !entry.is_reset;
        let is_false = !entry.over
            && entry.closed_in_order()
            && !entry.closed_by_server
            && entry.read_by_server < entry.written;
        if is_false {
            self.wrong(Check::Closes, id, "closed in order, but the server has not received all");
        }
        self.completed += u64::from(completes);
        self.end(id);
    }

    fn end(&mut self, id: SessionId) {
        if !std::mem::replace(&mut self.entry(id).over, true) {
            self.open -= 1;
        }
    }

    /// Whether the client has closed the session in order.
    pub fn has_closed_in_order(&self, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(Entry::closed_in_order)
    }

    /// The client's carrier was closed for a reason that breaks a rule.
    pub fn client_sees_break(&mut self, id: SessionId, reason: CloseReason) {
        self.wrong(Check::Rules, id, &format!("its client saw it closed for {reason:?}"));
    }

    /// A server begins a session.
    pub fn server_begins(&mut self, id: SessionId, answer: &Resumed) {
        let entry = self.entry(id);
        let knew = entry.server_life.replace(answer.life);
        entry.epoch_accepted = answer.epoch;
        if !entry.is_stale() {
            // Unread replies belong to a life that is over.
            (entry.replied, entry.replied_all, entry.closed_by_server) = (0, false, false);
        }
        if knew.is_some() {
            self.wrong(Check::Epochs, id, "begins although the server knows it");
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
        self.wrong(Check::Epochs, id, problem);
    }

    /// The server's application gets bytes.
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
        self.wrong(Check::Requests, id, problem);
    }

    /// `unread` request bytes wait for the server's application.
    pub fn server_holds(&mut self, id: SessionId, unread: u64) {
        if unread > u64::from(self.server.stream.window_bytes) {
            self.wrong(Check::Memory, id, "more waits for the server than the window");
        }
    }

    /// The server's application sees the end of the requests.
    pub fn server_sees_end(&mut self, id: SessionId) {
        let entry = self.entry(id);
        if !entry.is_reset && (!entry.finished || entry.read_by_server != entry.written) {
            self.wrong(Check::Ends, id, "its requests ended too early");
        }
    }

    /// The server closes the session, or sees it closed, for a reason that breaks a rule.
    pub fn server_sees_break(&mut self, id: SessionId, reason: CloseReason) {
        // A session that a replay began may receive any control message.
        if !self.entry(id).is_stale() {
            self.wrong(Check::Rules, id, &format!("the server closes it for {reason:?}"));
        }
    }

    /// The bytes that the server's application replies next, at most `most`.
    pub fn reply(&mut self, id: SessionId, most: u64) -> Vec<u8> {
        let entry = self.entry(id);
        bytes_of(reply_word, entry.token, entry.replied, most)
    }

    /// The server's port took this many bytes.
    pub fn replied(&mut self, id: SessionId, bytes: u64) {
        let most = self.server.stream.kept_bytes_max as u64;
        let entry = self.entry(id);
        entry.replied += bytes;
        // Bytes that have not arrived are kept.
        if entry.replied.saturating_sub(entry.read_by_client) > most
            && !entry.is_reset
            && !entry.closed_by_client
        {
            self.wrong(Check::Memory, id, "the server keeps more for it than its bound");
        }
    }

    /// The server's application replies no more.
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

    /// The server answers again how a session ended.
    pub fn server_repeats_end(&mut self, id: SessionId, answer: &Resumed) {
        let entry = self.entry(id);
        let before = std::mem::replace(&mut entry.epoch_accepted, answer.epoch);
        if answer.epoch <= before || entry.server_life.is_some() {
            self.wrong(Check::Epochs, id, "its end is answered to an old epoch, or while it is open");
        }
    }

    /// The server refuses an opening message with *gone*.
    pub fn server_answers_gone(&mut self, now: Time, id: SessionId) {
        let until = self.ended.iter().rev().find(|(_, ended)| *ended == id).map(|(until, _)| *until);
        // A server remembers at most `sessions_max` ended sessions. Sessions that ended in the same turn have an
        // unknown order.
        let since = |until: Time| self.ended.iter().filter(|(other, _)| *other >= until).count();
        let is_remembered = until
            .is_some_and(|until| until > now && since(until) <= self.server.sessions_max)
            && !self.lost_copies.contains(&id);
        self.entry(id).is_long_over |= !is_remembered;
    }

    /// The server's process ends and loses all sessions.
    pub fn server_dies(&mut self, known: impl Iterator<Item = SessionId>) {
        known.for_each(|id| self.server_loses(id, true));
        self.ended.clear();
    }

    /// The server forgets the session; `lost`: before both of its ends had closed it.
    pub fn server_forgets(&mut self, now: Time, id: SessionId, lost: bool) {
        while self.ended.front().is_some_and(|(until, _)| *until <= now) {
            self.ended.pop_front();
        }
        self.ended.push_back((now + self.server.linger, id));
        // A replayed *connect* may open a session again whose end the server has dropped. When such a copy is lost, the
        // server remembers nothing of the session; the copy still counts towards what the server keeps.
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
        let open = self.sessions.iter().filter(|(_, entry)| !entry.over).map(|(id, _)| *id);
        let open: Vec<SessionId> = open.take(3).collect();
        open.into_iter().for_each(|id| self.wrong(Check::Liveness, id, "has not ended"));
    }
}
