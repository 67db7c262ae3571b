//! The application on the user-level stack: source, sink or echo, with one connection at a time.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_transport::{Application, Conn, Event, Time, Transport};

use super::pattern;

/// Credit of a new connection: the stack's default limit of the receive window.
pub const GRANT_BYTES: u32 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Sends the pattern for this time, then finishes.
    Source(Duration),
    /// Receives the pattern; counts the bytes that arrive within this time after the first one.
    Sink(Duration),
    Echo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Time from the arrival of a byte to its release.
    pub delay: Duration,
    /// Whether an echo sends bytes back only when they are released, like a server that acknowledges with its answer.
    pub replies_wait: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    pub bytes: u64,
    /// Bytes within the measured time.
    pub counted: u64,
    /// Bytes within the second half of the measured time.
    pub late: u64,
    /// Received pieces that differ from the pattern.
    pub wrong: u64,
}

impl Stream {
    /// Counts bytes that arrived with `left` of the measured time `length` remaining.
    pub fn count(&mut self, bytes: usize, left: Duration, length: Duration) {
        self.counted += if left.is_zero() { 0 } else { bytes as u64 };
        self.late += if left.is_zero() || left > length / 2 { 0 } else { bytes as u64 };
    }
}

#[derive(Debug)]
pub struct Roles {
    role: Role,
    gate: Option<Gate>,
    is_listening: bool,
    conn: Option<Conn>,
    /// End of counting or sending; set by the first byte or when the connection opens.
    end_time: Option<Time>,
    pub received: Stream,
    /// Bytes that the stack has accepted for sending.
    pub sent: u64,
    /// Received bytes that an echo has not sent back yet.
    waiting: VecDeque<u8>,
    /// Pending releases: the time of each, and the stream offset up to which it releases.
    releases: VecDeque<(Time, u64)>,
    has_finished: bool,
    pub ended: u64,
}

impl Roles {
    /// An application that begins to listen at its first timeout.
    pub fn new(role: Role, gate: Option<Gate>) -> Roles {
        Roles {
            role,
            gate,
            is_listening: false,
            conn: None,
            end_time: None,
            received: Stream::default(),
            sent: 0,
            waiting: VecDeque::new(),
            releases: VecDeque::new(),
            has_finished: false,
            ended: 0,
        }
    }

    pub fn is_over(&self) -> bool {
        self.ended > 0 && self.conn.is_none()
    }

    fn receive<T: Transport>(&mut self, now: Time, conn: Conn, end: u64, bytes: &[u8], out: &mut T) {
        let begin = self.received.bytes;
        self.received.bytes = end;
        match self.role {
            Role::Sink(length) => {
                let end_time = *self.end_time.get_or_insert(now + length);
                self.received.count(bytes.len(), end_time - now, length);
                let is_right = begin + bytes.len() as u64 == end && pattern::is_right(begin, bytes);
                self.received.wrong += u64::from(!is_right);
            }
            // The peer compares the bytes that it gets back.
            Role::Echo => self.waiting.extend(bytes),
            Role::Source(_) => self.received.wrong += 1,
        }
        out.grant(conn, bytes.len() as u32); // at most a frame
        self.release_later(now, conn, end, out);
    }

    fn release_later<T: Transport>(&mut self, now: Time, conn: Conn, end_offset: u64, out: &mut T) {
        match self.gate {
            Some(gate) if !gate.delay.is_zero() => self.releases.push_back((now + gate.delay, end_offset)),
            _ => out.release(conn, end_offset),
        }
    }

    /// Lets a source send as much as the stack accepts, or finish at the end of its time.
    fn pump<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        if let Role::Source(length) = self.role {
            let end_time = *self.end_time.get_or_insert(now + length);
            if now < end_time {
                return self.fill(conn, out);
            }
            self.finish(conn, out);
        }
    }

    fn fill<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        loop {
            let bytes = pattern::slice_from(self.sent);
            let accepted = out.send(conn, bytes);
            self.sent += accepted as u64;
            if accepted < bytes.len() {
                return;
            }
        }
    }

    fn send_waiting<T: Transport>(&mut self, conn: Conn, bytes_max: usize, out: &mut T) {
        let bytes_max = bytes_max.min(self.waiting.len());
        let accepted = out.send(conn, &self.waiting.make_contiguous()[..bytes_max]);
        self.waiting.drain(..accepted);
        self.sent += accepted as u64;
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
            Event::Data { end, bytes } => self.receive(now, conn, end, bytes, out),
            Event::Finished => {
                // The FIN takes one offset (RFC 9293, 3.4).
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
            self.send_waiting(conn, usize::MAX, out);
        }
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if !self.is_listening {
            self.is_listening = true;
            out.set_listening(0, true);
        }
        while let Some((_, end_offset)) = self.releases.front().copied().filter(|(at, _)| *at <= now) {
            self.releases.pop_front();
            let Some(conn) = self.conn else { continue };
            out.release(conn, end_offset);
            if self.replies_wait() {
                let bytes_max = end_offset.min(self.received.bytes).saturating_sub(self.sent);
                self.send_waiting(conn, usize::try_from(bytes_max).unwrap_or(usize::MAX), out);
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
