//! The books of all sessions: what each must carry, and who still knows it.
//!
//! Every byte, both ways, is a function of the session's id and of where it is, so a byte that is lost, repeated, out of
//! order or altered shows at once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use spillway_wire::session::SessionId;

use crate::oracle::{bytes_of, reply_byte, request_byte};

/// One session, as both applications know it.
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
    /// The server has told that it sends no more, and the client heard it.
    complete: bool,
    /// A server knows it now.
    is_known: bool,
    /// A server knew it and lost it: by a restart, or because its client did not return.
    was_forgotten: bool,
    gone: bool,
    over: bool,
}

/// All of them, and what was wrong.
#[derive(Debug, Default)]
pub struct Books {
    sessions: BTreeMap<SessionId, Entry>,
    violations: Vec<String>,
    /// Bytes delivered, both ways.
    pub delivered: u64,
    /// Sessions that ended complete.
    pub completed: u64,
    /// Sessions whose clients were told *gone*.
    pub gone: u64,
    /// Times that a session went on, on another carrier.
    pub moves: u64,
}

/// Shared by all applications of one world.
pub type Shared = Rc<RefCell<Books>>;

fn token_of(id: SessionId) -> u64 {
    let mut token = [0; 8];
    token.copy_from_slice(&id.0[..8]);
    u64::from_le_bytes(token)
}

impl Books {
    const VIOLATIONS_MAX: usize = 20;

    /// Notes something that must not be.
    pub fn violation(&mut self, what: String) {
        if self.violations.len() < Books::VIOLATIONS_MAX {
            self.violations.push(what);
        }
    }

    /// Everything that must not have been.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Sessions there have been.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Sessions whose clients still hope.
    pub fn open(&self) -> usize {
        self.sessions.values().filter(|entry| !entry.over).count()
    }

    /// Grows whenever a byte is delivered or a session ends.
    pub fn progress(&self) -> u64 {
        self.delivered + self.completed + self.gone + self.moves
    }

    fn entry(&mut self, id: SessionId) -> &mut Entry {
        self.sessions.entry(id).or_default()
    }

    // The client's side.

    /// A client makes a session.
    pub fn begin(&mut self, id: SessionId) {
        let entry = Entry { token: token_of(id), ..Entry::default() };
        if self.sessions.insert(id, entry).is_some() {
            self.violation(format!("session {id:?} made twice: a fault of the simulator"));
        }
    }

    /// The bytes that the client's application writes next.
    pub fn request(&mut self, id: SessionId, most: u64) -> Vec<u8> {
        let entry = self.entry(id);
        bytes_of(request_byte, entry.token, entry.written, most)
    }

    /// So many of them were taken.
    pub fn wrote(&mut self, id: SessionId, bytes: u64) {
        self.entry(id).written += bytes;
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

    /// The client's application gets bytes.
    pub fn client_reads(&mut self, id: SessionId, bytes: &[u8]) {
        self.delivered += bytes.len() as u64;
        let entry = self.entry(id);
        let right = bytes_of(reply_byte, entry.token, entry.read_by_client, bytes.len() as u64);
        let at = entry.read_by_client;
        entry.read_by_client += bytes.len() as u64;
        let problem = if bytes != right {
            "wrong reply bytes"
        } else if entry.read_by_client > entry.replied {
            "reply bytes that nobody sent"
        } else if entry.closed_by_client {
            "reply bytes after the client closed"
        } else {
            return;
        };
        self.violation(format!("session {id:?}: {problem} at {at}"));
    }

    /// The client's application hears that no more replies come, or that the server closed in good order.
    pub fn client_sees_end(&mut self, id: SessionId) {
        let entry = self.entry(id);
        entry.complete = true;
        if !entry.is_reset && (!entry.replied_all || entry.read_by_client != entry.replied) {
            let (read, replied) = (entry.read_by_client, entry.replied);
            self.violation(format!("session {id:?}: ended after {read} of {replied} bytes of replies"));
        }
    }

    /// The client is told *gone*: the server is known to have received up to `acknowledged`.
    pub fn client_told_gone(&mut self, id: SessionId, acknowledged: u64) {
        self.gone += 1;
        let entry = self.entry(id);
        let first = !std::mem::replace(&mut entry.gone, true);
        entry.over = true;
        let problem = if entry.is_known {
            "gone, but the server knows it"
        } else if !(entry.was_forgotten || entry.closed_by_client || entry.closed_by_server) {
            "gone, but no server ever lost it"
        } else if acknowledged > entry.read_by_server && !entry.closed_by_server {
            "gone, with more acknowledged than was received"
        } else if !first {
            "gone twice"
        } else {
            return;
        };
        self.violation(format!("session {id:?}: {problem} ({acknowledged})"));
    }

    /// The client's end is over.
    pub fn client_over(&mut self, id: SessionId) {
        let entry = self.entry(id);
        let completes = !entry.over && entry.complete && !entry.is_reset;
        entry.over = true;
        self.completed += u64::from(completes);
    }

    // The server's side.

    /// A server begins a session for a client.
    pub fn server_begins(&mut self, id: SessionId) {
        let entry = self.entry(id);
        if entry.over || entry.was_forgotten {
            // Words that come very late: to the application, a connection on which nothing is ever said.
            return;
        }
        let repeated = entry.read_by_server > 0 || entry.read_by_client > 0 || entry.is_known;
        let before = entry.clone();
        entry.is_known = true;
        // Replies that nobody has read are those of a life that is over.
        (entry.replied, entry.replied_all, entry.closed_by_server) = (0, false, false);
        if repeated {
            self.violation(format!("session {id:?} begins again: {before:?}"));
        }
    }

    /// A session goes on, on another carrier.
    pub fn server_resumes(&mut self, id: SessionId) {
        self.moves += 1;
        let entry = self.entry(id);
        if !(entry.is_known || entry.over || entry.was_forgotten) {
            self.violation(format!("session {id:?} goes on at a server that does not know it"));
        }
    }

    /// The server's application gets bytes.
    pub fn server_reads(&mut self, id: SessionId, bytes: &[u8]) {
        self.delivered += bytes.len() as u64;
        let entry = self.entry(id);
        let right = bytes_of(request_byte, entry.token, entry.read_by_server, bytes.len() as u64);
        let at = entry.read_by_server;
        entry.read_by_server += bytes.len() as u64;
        let problem = if bytes != right {
            "wrong request bytes"
        } else if entry.read_by_server > entry.written {
            "request bytes that nobody wrote"
        } else if entry.closed_by_server {
            "request bytes after the server closed"
        } else {
            return;
        };
        self.violation(format!("session {id:?}: {problem} at {at}"));
    }

    /// The server's application hears that no more requests come.
    pub fn server_sees_end(&mut self, id: SessionId) {
        let entry = self.entry(id);
        if !entry.is_reset && (!entry.finished || entry.read_by_server != entry.written) {
            let (read, written) = (entry.read_by_server, entry.written);
            self.violation(format!("session {id:?}: ended after {read} of {written} bytes of requests"));
        }
    }

    /// The bytes that the server's application replies next.
    pub fn reply(&mut self, id: SessionId, most: u64) -> Vec<u8> {
        let entry = self.entry(id);
        bytes_of(reply_byte, entry.token, entry.replied, most)
    }

    /// So many of them were taken.
    pub fn replied(&mut self, id: SessionId, bytes: u64) {
        self.entry(id).replied += bytes;
    }

    /// The server's application replies no more.
    pub fn server_finishes(&mut self, id: SessionId) {
        self.entry(id).replied_all = true;
    }

    /// The server's application closes.
    pub fn server_closes(&mut self, id: SessionId, resets: bool) {
        let entry = self.entry(id);
        entry.closed_by_server = true;
        entry.replied_all = true;
        entry.is_reset |= resets;
    }

    /// No server knows the session any more. `lost`: without its ends meaning it.
    pub fn server_forgets(&mut self, id: SessionId, lost: bool) {
        let entry = self.entry(id);
        entry.is_known = false;
        entry.was_forgotten |= lost;
    }

    /// The end: every session must have ended.
    pub fn all_ended(&mut self) {
        let open = |(id, entry): (&SessionId, &Entry)| format!("session {id:?} has not ended: {entry:?}");
        let open: Vec<String> =
            self.sessions.iter().filter(|(_, entry)| !entry.over).take(3).map(open).collect();
        open.into_iter().for_each(|what| self.violation(what));
    }
}
