//! What a client does, drawn from the seed.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_transport::Time;

use crate::oracle::Shared;
use crate::pattern::{TOKEN_BYTES, Token, bytes_of, request_word};
use crate::rng::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Sends, finishes, reads all, closes.
    Normal,
    /// Reads slowly, and sends in pieces with pauses.
    Slow,
    /// Resets its connection after this many bytes.
    ResetsAfter(u64),
    /// Does not read until the storm is over.
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
    pub pause: Time,
    /// The client has sent its end.
    pub finished: bool,
    /// The client has received the end of the replies.
    pub saw_end: bool,
    /// Received and not yet given credit for, bytes.
    pub unread: u64,
    oracle: Shared,
}

impl Script {
    /// Draws a client's script, and begins its stream at the oracle.
    pub fn new(rng: &mut Rng, client: SocketAddr, early_ends_in_1000: u64, oracle: &Shared) -> Script {
        let token = rng.word();
        let length =
            TOKEN_BYTES + if rng.chance(1, 8) { rng.scale(30_000, 400_000) } else { rng.scale(1, 4000) };
        let behaviour = if rng.chance(early_ends_in_1000, 1000) {
            if rng.chance(1, 4) { Behaviour::ReadsLate } else { Behaviour::ResetsAfter(rng.scale(1, length)) }
        } else if rng.chance(1, 4) {
            Behaviour::Slow
        } else {
            Behaviour::Normal
        };
        oracle.borrow_mut().begin(token, client, matches!(behaviour, Behaviour::Normal | Behaviour::Slow));
        Script {
            token,
            behaviour,
            length,
            sent: 0,
            pause: Time::ZERO,
            finished: false,
            saw_end: false,
            unread: 0,
            oracle: oracle.clone(),
        }
    }

    /// The next bytes to be sent; empty during a pause and after the end.
    pub fn next_bytes(&self, now: Time, rng: &mut Rng) -> Vec<u8> {
        if self.finished || self.pause > now {
            return Vec::new();
        }
        let part = (self.length - self.sent).min(rng.scale(1, 40_000));
        bytes_of(request_word, self.token, self.sent, part)
    }

    /// The transport took this many bytes.
    pub fn sent_bytes(&mut self, bytes: usize, now: Time, rng: &mut Rng) {
        self.sent += bytes as u64;
        self.oracle.borrow_mut().sent(self.token, bytes as u64);
        if self.behaviour == Behaviour::Slow {
            self.pause = now + Duration::from_nanos(rng.scale(1_000, 3_000_000));
        }
    }

    /// Whether all bytes are sent, and the end is not.
    pub fn is_sent(&self) -> bool {
        self.sent == self.length && !self.finished
    }

    pub fn finish(&mut self) {
        self.finished = true;
        self.oracle.borrow_mut().sent_all(self.token);
    }

    pub fn resets(&self) -> bool {
        matches!(self.behaviour, Behaviour::ResetsAfter(after) if self.sent >= after)
    }

    pub fn received(&mut self, bytes: &[u8]) {
        self.unread += bytes.len() as u64;
        self.oracle.borrow_mut().client_received(self.token, bytes);
    }

    /// Reads some bytes; returns how many, to be granted again.
    pub fn reads(&mut self, rng: &mut Rng) -> u64 {
        let part = match self.behaviour {
            Behaviour::ReadsLate => 0,
            Behaviour::Slow => self.unread.min(rng.scale(1, 10_000)),
            Behaviour::Normal | Behaviour::ResetsAfter(_) => self.unread,
        };
        self.unread -= part;
        part
    }

    pub fn end_of_replies(&mut self) {
        if !std::mem::replace(&mut self.saw_end, true) {
            self.oracle.borrow_mut().client_saw_end(self.token);
        }
    }

    pub fn done(&self) {
        self.oracle.borrow_mut().client_done(self.token, self.saw_end && self.finished);
    }

    /// A client that did not read begins to.
    pub fn calm_down(&mut self) {
        if self.behaviour == Behaviour::ReadsLate {
            self.behaviour = Behaviour::Normal;
        }
    }
}
