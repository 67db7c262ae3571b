//! What a client does, drawn from the seed.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_transport::Time;

use crate::oracle::Shared;
use crate::pattern::{TOKEN_BYTES, Token, bytes_of, request_word};
use crate::rng::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Sends, finishes, reads all, closes.
    Polite,
    /// Reads slowly, and sends in pieces with pauses.
    Slow,
    /// Resets its connection after this many bytes.
    Leaves(u64),
    /// Does not read until the storm is over.
    Deaf,
}

/// The client's side of one virtual connection.
#[derive(Debug)]
pub struct Script {
    /// The stream's token at the oracle.
    pub token: Token,
    pub manner: Manner,
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
    pub fn new(rng: &mut Rng, client: SocketAddr, rude_in_1000: u64, oracle: &Shared) -> Script {
        let token = rng.word();
        let length =
            TOKEN_BYTES + if rng.chance(1, 8) { rng.scale(30_000, 400_000) } else { rng.scale(1, 4000) };
        let manner = if rng.chance(rude_in_1000, 1000) {
            if rng.chance(1, 4) { Manner::Deaf } else { Manner::Leaves(rng.scale(1, length)) }
        } else if rng.chance(1, 4) {
            Manner::Slow
        } else {
            Manner::Polite
        };
        oracle.borrow_mut().begin(token, client, matches!(manner, Manner::Polite | Manner::Slow));
        Script {
            token,
            manner,
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
    pub fn took(&mut self, bytes: usize, now: Time, rng: &mut Rng) {
        self.sent += bytes as u64;
        self.oracle.borrow_mut().sent(self.token, bytes as u64);
        if self.manner == Manner::Slow {
            self.pause = now + Duration::from_nanos(rng.scale(1_000, 3_000_000));
        }
    }

    /// Whether all bytes are sent, and the end is not.
    pub fn is_sent(&self) -> bool {
        self.sent == self.length && !self.finished
    }

    /// Records that the client sends no more.
    pub fn finish(&mut self) {
        self.finished = true;
        self.oracle.borrow_mut().sent_all(self.token);
    }

    /// Whether the client resets its connection now.
    pub fn leaves(&self) -> bool {
        matches!(self.manner, Manner::Leaves(after) if self.sent >= after)
    }

    /// Handles reply bytes.
    pub fn got(&mut self, bytes: &[u8]) {
        self.unread += bytes.len() as u64;
        self.oracle.borrow_mut().got_by_client(self.token, bytes);
    }

    /// Reads some bytes; returns how many, to be granted again.
    pub fn reads(&mut self, rng: &mut Rng) -> u64 {
        let part = match self.manner {
            Manner::Deaf => 0,
            Manner::Slow => self.unread.min(rng.scale(1, 10_000)),
            Manner::Polite | Manner::Leaves(_) => self.unread,
        };
        self.unread -= part;
        part
    }

    /// Handles the end of the replies.
    pub fn end_of_replies(&mut self) {
        if !std::mem::replace(&mut self.saw_end, true) {
            self.oracle.borrow_mut().client_saw_end(self.token);
        }
    }

    /// The stream is over for the client.
    pub fn done(&self) {
        self.oracle.borrow_mut().client_done(self.token, self.saw_end && self.finished);
    }

    /// A client that did not read begins to.
    pub fn calm_down(&mut self) {
        if self.manner == Manner::Deaf {
            self.manner = Manner::Polite;
        }
    }
}
