//! What a client means to do, drawn from the seed.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_transport::Time;

use crate::oracle::Shared;
use crate::pattern::{TOKEN_BYTES, Token, bytes_of, request_word};
use crate::rng::Rng;

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Sends, finishes, reads all, closes.
    Polite,
    /// Reads slowly, and sends in pieces with pauses.
    Slow,
    /// Resets after so many bytes.
    Leaves(u64),
    /// Does not read until the storm is over.
    Deaf,
}

/// One virtual connection from its client's side: what is still to be sent, what was received.
#[derive(Debug)]
pub struct Script {
    /// Its name in the oracle's books.
    pub token: Token,
    /// How it behaves.
    pub manner: Manner,
    length: u64,
    sent: u64,
    /// Until when it pauses.
    pub pause: Time,
    /// It has said that it sends no more.
    pub finished: bool,
    /// It was told that the server sends no more.
    pub saw_end: bool,
    /// Received and not yet given credit for.
    pub unread: u64,
    oracle: Shared,
}

impl Script {
    /// Draws one.
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

    /// The next bytes to be sent, if it sends now.
    pub fn next_bytes(&self, now: Time, rng: &mut Rng) -> Vec<u8> {
        if self.finished || self.pause > now {
            return Vec::new();
        }
        let part = (self.length - self.sent).min(rng.scale(1, 40_000));
        bytes_of(request_word, self.token, self.sent, part)
    }

    /// So many of them were taken.
    pub fn took(&mut self, bytes: usize, now: Time, rng: &mut Rng) {
        self.sent += bytes as u64;
        self.oracle.borrow_mut().sent(self.token, bytes as u64);
        if self.manner == Manner::Slow {
            self.pause = now + Duration::from_nanos(rng.scale(1_000, 3_000_000));
        }
    }

    /// Whether all is sent, and it may say so.
    pub fn is_sent(&self) -> bool {
        self.sent == self.length && !self.finished
    }

    /// It says that it sends no more.
    pub fn finish(&mut self) {
        self.finished = true;
        self.oracle.borrow_mut().sent_all(self.token);
    }

    /// Whether it leaves now, without a word.
    pub fn leaves(&self) -> bool {
        matches!(self.manner, Manner::Leaves(after) if self.sent >= after)
    }

    /// Bytes of the reply.
    pub fn got(&mut self, bytes: &[u8]) {
        self.unread += bytes.len() as u64;
        self.oracle.borrow_mut().got_by_client(self.token, bytes);
    }

    /// Bytes that it reads now: credit for them is given back.
    pub fn reads(&mut self, rng: &mut Rng) -> u64 {
        let part = match self.manner {
            Manner::Deaf => 0,
            Manner::Slow => self.unread.min(rng.scale(1, 10_000)),
            Manner::Polite | Manner::Leaves(_) => self.unread,
        };
        self.unread -= part;
        part
    }

    /// No more replies follow.
    pub fn end_of_replies(&mut self) {
        if !std::mem::replace(&mut self.saw_end, true) {
            self.oracle.borrow_mut().client_saw_end(self.token);
        }
    }

    /// It is over.
    pub fn done(&self) {
        self.oracle.borrow_mut().client_done(self.token, self.saw_end && self.finished);
    }

    /// The storm is over: who did not read reads.
    pub fn calm_down(&mut self) {
        if self.manner == Manner::Deaf {
            self.manner = Manner::Polite;
        }
    }
}
