//! What the generator says to a server and what it must hear back.

pub mod echo;
pub mod memcached;
pub mod redis;
pub mod store;

use crate::random::{Random, mix};

/// A request as it is drawn; it may wait before it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The key (memcached, redis) or the payload's number (echo).
    pub key: u32,
    /// Changes the server's data.
    pub write: bool,
}

/// A request that was sent, with what its reply must be checked against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// What was asked.
    pub request: Request,
    /// Of a write: the version written. Of a read: the oldest version the reply may carry.
    pub version: u64,
}

/// What the bytes received since a request was sent amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// More bytes must come.
    Incomplete,
    /// The right reply, this many bytes long.
    Right(usize),
    /// A well-formed reply of this many bytes that is not the right one.
    Wrong(usize),
    /// Not a reply, or its end cannot be told: the connection is of no more use.
    Garbled,
}

/// One protocol, as one thread speaks it. All randomness comes from the seed.
pub trait Protocol {
    /// Draws the next request.
    fn draw(&mut self) -> Request;

    /// Appends the request's bytes to `out`. Called when it is about to be sent.
    fn encode(&mut self, request: Request, out: &mut Vec<u8>) -> Sent;

    /// Judges `reply`, all bytes received since `sent` was sent. `Right` and `Wrong` end the request; the
    /// protocol is not asked about it again.
    fn check(&mut self, sent: &Sent, reply: &[u8]) -> Verdict;

    /// Says what is wrong with a reply, for people. Not on any fast path.
    fn explain(&self, sent: &Sent, reply: &[u8]) -> String;
}

/// Fills `out` with bytes that follow from `seed`, `key` and `version` and from nothing else: what was stored
/// under one name can never pass for what was stored under another.
pub(crate) fn derive(seed: u64, key: u32, version: u64, out: &mut [u8]) {
    let mut random = Random::new(seed ^ mix(u64::from(key)), version);
    let mut chunks = out.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&random.next_u64().to_le_bytes());
    }
    let rest = chunks.into_remainder();
    let bytes = random.next_u64().to_le_bytes();
    let length = rest.len();
    rest.copy_from_slice(&bytes[..length]);
}

/// At most the first 48 bytes, printable.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(48)];
    let dots = if bytes.len() > shown.len() { "…" } else { "" };
    format!("\"{}\"{dots} ({} bytes)", shown.escape_ascii(), bytes.len())
}
