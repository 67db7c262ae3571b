//! Protocols: the requests that the generator sends, and the check of their replies.

pub mod echo;
pub mod http;
pub mod memcached;
pub mod redis;
pub mod store;

use crate::objects::Rest;
use crate::random::{Random, mix};

/// A drawn request, which may wait in the client before it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The key (memcached, redis) or the request's number (echo, HTTP).
    pub key: u32,
    /// Whether the request changes the server's data.
    pub write: bool,
}

/// A sent request, and the version that the check of its reply needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentRequest {
    /// The request.
    pub request: Request,
    /// For a write, the version written. For a read, the oldest version that the reply may carry.
    pub version: u64,
}

/// Result of checking the bytes received since a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The reply is not complete yet.
    Incomplete,
    /// The bytes so far are right, and need not be kept: [`Protocol::check_rest`] checks those after them.
    Continues(Rest),
    /// The right reply, with its length in bytes.
    Right(usize),
    /// A well-formed, wrong reply, with its length in bytes.
    Wrong(usize),
    /// Bytes that are not a reply, or a reply without a known end: close the connection.
    Garbled,
}

/// One thread's state of a protocol. All random draws come from the seed.
pub trait Protocol {
    /// Draws the next request.
    fn draw(&mut self) -> Request;

    /// Appends the request's bytes to `out`. Call it immediately before sending.
    fn encode(&mut self, request: Request, out: &mut Vec<u8>) -> SentRequest;

    /// Checks `reply`, all bytes received since `sent` was sent. Call it again with more bytes only after `Incomplete`.
    fn check(&mut self, sent: &SentRequest, reply: &[u8]) -> Verdict;

    /// Checks `reply`, all bytes received after those for which the last verdict was [`Verdict::Continues`], with what it
    /// has returned. Only protocols that give this verdict need it.
    fn check_rest(&mut self, rest: Rest, reply: &[u8]) -> Verdict {
        let _ = (rest, reply);
        Verdict::Garbled
    }

    /// Describes for people what is wrong with a reply. Slow.
    fn explain(&self, sent: &SentRequest, reply: &[u8]) -> String;
}

/// Fills `out` with bytes that depend only on `seed`, `key` and `version`, so that a value of another key or version is
/// detected.
pub(crate) fn fill_derived(seed: u64, key: u32, version: u64, out: &mut [u8]) {
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

/// The first bytes as printable text, at most 48.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(48)];
    let dots = if bytes.len() > shown.len() { "…" } else { "" };
    format!("\"{}\"{dots} ({} bytes)", shown.escape_ascii(), bytes.len())
}
