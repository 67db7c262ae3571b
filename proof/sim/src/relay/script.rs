//! The behaviour of one client, drawn from the seed.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_transport::{Conn, Time, Transport};

use crate::oracle::SharedOracle;
use crate::pattern::{TOKEN_BYTES, Token, bytes_of, request_word};
use crate::rng::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Sends its requests and their end, reads all replies, and closes.
    Normal,
    /// Reads slowly, and pauses between sends.
    Slow,
    /// Resets its connection after it has sent this many bytes.
    ResetsAfter(u64),
    /// Reads nothing until faults stop ([`Script::begin_calm_phase`]).
    ReadsLate,
}

/// The client's side of one virtual connection.
#[derive(Debug)]
pub struct Script {
    /// The stream's token at the oracle.
    pub token: Token,
    pub behaviour: Behaviour,
    length: u64,
    sent: u64,
    /// The client sends nothing before this time.
    pub paused_until: Time,
    /// The client has sent the end of its requests.
    pub finished: bool,
    /// The client has received the end of the replies.
    pub saw_end: bool,
    /// Bytes received and not yet granted again.
    pub unread: u64,
    oracle: SharedOracle,
}

impl Script {
    /// Draws a client's script, and begins its stream at the oracle. `irregular_per_1000`: how many of 1000
    /// clients reset their connection or read late.
    pub fn new(rng: &mut Rng, client: SocketAddr, irregular_per_1000: u64, oracle: &SharedOracle) -> Script {
        let token = rng.word();
        let length = TOKEN_BYTES
            + if rng.chance(1, 8) { rng.log_uniform(30_000, 400_000) } else { rng.log_uniform(1, 4000) };
        let behaviour = if rng.chance(irregular_per_1000, 1000) {
            if rng.chance(1, 4) {
                Behaviour::ReadsLate
            } else {
                Behaviour::ResetsAfter(rng.log_uniform(1, length))
            }
        } else if rng.chance(1, 4) {
            Behaviour::Slow
        } else {
            Behaviour::Normal
        };
        let ends_in_order = matches!(behaviour, Behaviour::Normal | Behaviour::Slow);
        oracle.borrow_mut().begin(token, client, ends_in_order);
        Script {
            token,
            behaviour,
            length,
            sent: 0,
            paused_until: Time::ZERO,
            finished: false,
            saw_end: false,
            unread: 0,
            oracle: oracle.clone(),
        }
    }

    /// Sends the requests that are due, and their end; or resets the connection, if the behaviour asks for it. Returns
    /// whether the connection is still open.
    pub fn advance<T: Transport>(&mut self, now: Time, conn: Conn, rng: &mut Rng, out: &mut T) -> bool {
        self.send_requests(now, rng, |bytes| out.send(conn, bytes));
        if self.is_reset_due() {
            self.record_closed();
            out.abort(conn);
            return false;
        }
        if self.is_end_due() {
            self.finish();
            out.finish(conn);
        }
        true
    }

    /// Passes the bytes that are due to `send`, which returns how many of them it has accepted.
    pub fn send_requests(&mut self, now: Time, rng: &mut Rng, mut send: impl FnMut(&[u8]) -> usize) {
        loop {
            let bytes = self.next_bytes(now, rng);
            if bytes.is_empty() {
                return;
            }
            let accepted = send(&bytes);
            self.record_sent(accepted, now, rng);
            if accepted < bytes.len() {
                return;
            }
        }
    }

    /// The next bytes to send; empty during a pause and after the end.
    fn next_bytes(&self, now: Time, rng: &mut Rng) -> Vec<u8> {
        if self.finished || self.paused_until > now {
            return Vec::new();
        }
        let part = (self.length - self.sent).min(rng.log_uniform(1, 40_000));
        bytes_of(request_word, self.token, self.sent, part)
    }

    /// Records that the transport accepted this many bytes.
    fn record_sent(&mut self, bytes: usize, now: Time, rng: &mut Rng) {
        self.sent += bytes as u64;
        self.oracle.borrow_mut().sent(self.token, bytes as u64);
        if self.behaviour == Behaviour::Slow {
            self.paused_until = now + Duration::from_nanos(rng.log_uniform(1_000, 3_000_000));
        }
    }

    /// Whether all bytes are sent, but not the end of the requests.
    pub fn is_end_due(&self) -> bool {
        self.sent == self.length && !self.finished
    }

    pub fn finish(&mut self) {
        self.finished = true;
        self.oracle.borrow_mut().sent_all(self.token);
    }

    pub fn is_reset_due(&self) -> bool {
        matches!(self.behaviour, Behaviour::ResetsAfter(after) if self.sent >= after)
    }

    pub fn receive(&mut self, bytes: &[u8]) {
        self.unread += bytes.len() as u64;
        self.oracle.borrow_mut().client_received(self.token, bytes);
    }

    /// Reads some bytes. Returns how many the caller must grant again.
    pub fn read_some(&mut self, rng: &mut Rng) -> u64 {
        let part = match self.behaviour {
            Behaviour::ReadsLate => 0,
            Behaviour::Slow => self.unread.min(rng.log_uniform(1, 10_000)),
            Behaviour::Normal | Behaviour::ResetsAfter(_) => self.unread,
        };
        self.unread -= part;
        part
    }

    pub fn receive_end(&mut self) {
        if !std::mem::replace(&mut self.saw_end, true) {
            self.oracle.borrow_mut().client_saw_end(self.token);
        }
    }

    /// Records that the client's connection has ended, in order or by a reset.
    pub fn record_closed(&self) {
        self.oracle.borrow_mut().client_done(self.token, self.saw_end && self.finished);
    }

    /// Faults stop: a client that reads late begins to read.
    pub fn begin_calm_phase(&mut self) {
        if self.behaviour == Behaviour::ReadsLate {
            self.behaviour = Behaviour::Normal;
        }
    }
}
