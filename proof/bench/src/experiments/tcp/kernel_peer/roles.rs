//! What the application on the user-level stack does with its connection, one at a time.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_transport::{Application, Conn, Event, Time, Transport};

use super::pattern;

/// Bytes that a connection is granted ahead: the largest window that the stack tells by default.
pub const GRANT_BYTES: u32 = 1 << 20;

/// What the application does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Sends the pattern for so long, then finishes.
    Source(Duration),
    /// Takes the pattern, and counts what comes within so long.
    Sink(Duration),
    /// Sends back what comes.
    Echo,
}

/// How far behind what came the gate is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// A byte is released so long after it came.
    pub delay: Duration,
    /// What an echo sends back waits as long, as if whoever releases had answered.
    pub replies_wait: bool,
}

/// What was seen of a stream of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// All bytes.
    pub bytes: u64,
    /// Those within the time that is measured.
    pub counted: u64,
    /// Those within the second half of it.
    pub late: u64,
    /// Pieces with a byte that is not the pattern's.
    pub wrong: u64,
}

impl Stream {
    /// Bytes that came with so much left of the time that is measured.
    pub fn count(&mut self, bytes: usize, left: Duration, length: Duration) {
        self.counted += if left.is_zero() { 0 } else { bytes as u64 };
        self.late += if left.is_zero() || left > length / 2 { 0 } else { bytes as u64 };
    }
}

/// The application.
#[derive(Debug)]
pub struct Roles {
    role: Role,
    gate: Option<Gate>,
    is_listening: bool,
    conn: Option<Conn>,
    /// When counting or sending ends; set by the first byte or the opening.
    until: Option<Time>,
    /// What comes.
    pub received: Stream,
    /// Bytes that were given to the stack.
    pub sent: u64,
    /// What is to be sent back.
    waiting: VecDeque<u8>,
    /// Releases to come: when, and through which offset.
    releases: VecDeque<(Time, u64)>,
    has_finished: bool,
    /// Connections that are over.
    pub ended: u64,
}

impl Roles {
    /// Listens, and plays this role.
    pub fn new(role: Role, gate: Option<Gate>) -> Roles {
        Roles {
            role,
            gate,
            is_listening: false,
            conn: None,
            until: None,
            received: Stream::default(),
            sent: 0,
            waiting: VecDeque::new(),
            releases: VecDeque::new(),
            has_finished: false,
            ended: 0,
        }
    }

    /// Whether a connection has come and gone.
    pub fn is_over(&self) -> bool {
        self.ended > 0 && self.conn.is_none()
    }

    fn take<T: Transport>(&mut self, now: Time, conn: Conn, end: u64, bytes: &[u8], out: &mut T) {
        let begin = self.received.bytes;
        self.received.bytes = end;
        match self.role {
            Role::Sink(length) => {
                let until = *self.until.get_or_insert(now + length);
                self.received.count(bytes.len(), until - now, length);
                let is_right = begin + bytes.len() as u64 == end && pattern::is_right(begin, bytes);
                self.received.wrong += u64::from(!is_right);
            }
            // Whoever asked compares what comes back.
            Role::Echo => self.waiting.extend(bytes),
            Role::Source(_) => self.received.wrong += 1,
        }
        out.grant(conn, bytes.len() as u32); // a frame's
        self.release_later(now, conn, end, out);
    }

    fn release_later<T: Transport>(&mut self, now: Time, conn: Conn, through: u64, out: &mut T) {
        match self.gate {
            Some(gate) if !gate.delay.is_zero() => self.releases.push_back((now + gate.delay, through)),
            _ => out.release(conn, through),
        }
    }

    /// Sends what is to be sent, as far as there is room.
    fn pump<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        if let Role::Source(length) = self.role {
            let until = *self.until.get_or_insert(now + length);
            // The time is the turn's: what there is room for was taken before it is over.
            if now < until {
                return self.fill(conn, out);
            }
            self.finish(conn, out);
        }
    }

    fn fill<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        loop {
            let bytes = pattern::from(self.sent);
            let taken = out.send(conn, bytes);
            self.sent += taken as u64;
            if taken < bytes.len() {
                return;
            }
        }
    }

    /// Sends back so many bytes of what waits.
    fn answer<T: Transport>(&mut self, conn: Conn, many: usize, out: &mut T) {
        let many = many.min(self.waiting.len());
        let taken = out.send(conn, &self.waiting.make_contiguous()[..many]);
        self.waiting.drain(..taken);
        self.sent += taken as u64;
    }

    fn finish<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        if !self.has_finished {
            self.has_finished = true;
            out.finish(conn);
        }
    }

    fn replies_wait(&self) -> bool {
        self.gate.is_some_and(|gate| gate.replies_wait && !gate.delay.is_zero())
    }
}

impl Application for Roles {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        if let Event::Opened { .. } = event {
            if self.conn.is_some() {
                return out.abort(conn);
            }
            self.conn = Some(conn);
            out.grant(conn, GRANT_BYTES);
        }
        if self.conn != Some(conn) {
            return;
        }
        match event {
            Event::Data { end, bytes } => self.take(now, conn, end, bytes, out),
            Event::Finished => {
                // The end counts one.
                self.release_later(now, conn, self.received.bytes + 1, out);
                if !matches!(self.role, Role::Source(_)) {
                    self.finish(conn, out);
                }
            }
            Event::Lost(_) => {
                self.conn = None;
                self.ended += 1;
                return;
            }
            Event::Opened { .. } | Event::Room | Event::Acknowledged { .. } => {}
        }
        self.pump(now, conn, out);
        if !self.replies_wait() && !self.waiting.is_empty() {
            self.answer(conn, usize::MAX, out);
        }
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if !self.is_listening {
            self.is_listening = true;
            out.set_listening(0, true);
        }
        while let Some((_, through)) = self.releases.front().copied().filter(|(at, _)| *at <= now) {
            self.releases.pop_front();
            let Some(conn) = self.conn else { continue };
            out.release(conn, through);
            if self.replies_wait() {
                // All before `through` was answered once this is sent.
                let many = through.min(self.received.bytes).saturating_sub(self.sent);
                self.answer(conn, usize::try_from(many).unwrap_or(usize::MAX), out);
            }
        }
    }

    fn end_of_turn<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        if !self.is_listening {
            return Some(Time::ZERO);
        }
        self.releases.front().map(|(at, _)| *at)
    }
}
