//! Gets and sets of a key-value store; every byte of a reply is checked. A [`Dialect`] is the wire format.

use std::marker::PhantomData;

use super::{Protocol, Request, SentRequest, Verdict, excerpt, fill_derived};
use crate::keys::Keys;
use crate::random::{Random, mix};

/// Values of at least this size begin with their version (8 bytes), with which replies after sets are checked.
pub const VERSIONED_VALUE_SIZE_MIN: usize = 8;
/// A reply without a line end in this many bytes counts as garbled.
pub(super) const LINE_MAX: usize = 2048;

/// The wire format of a store's requests and replies.
pub trait Dialect {
    /// Appends a get of `key`.
    fn push_get(space: &Space, key: u32, out: &mut Vec<u8>);

    /// Appends a set of `key` to its value in `version`.
    fn push_set(space: &Space, key: u32, version: u64, out: &mut Vec<u8>);

    /// Appends the part of a get's reply before the value.
    fn push_value_head(space: &Space, key: u32, out: &mut Vec<u8>);

    /// The part of a get's reply after the value.
    const VALUE_TAIL: &'static [u8];

    /// The reply to a set.
    const STORED: &'static [u8];

    /// Whether an unexpected first line of a reply (line end included) announces a value, of another key or size. The
    /// end of such a reply is unknown.
    fn announces_value(line: &[u8]) -> bool;

    /// Whether a reply says that the key is missing.
    fn is_miss(reply: &[u8]) -> bool;
}

/// Derives the keys and values of a key space from its seed.
#[derive(Clone, Debug)]
pub struct Space {
    /// Seed of key names and values.
    pub seed: u64,
    /// Length of keys, 8 to 250 bytes.
    pub key_size: usize,
    /// Length of values, in bytes.
    pub value_size: usize,
}

impl Space {
    /// Appends the name of key number `key`: 8 hexadecimal digits, then letters derived from the seed, so that runs
    /// with different seeds do not read each other's data.
    pub fn push_key(&self, key: u32, out: &mut Vec<u8>) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        out.extend((0..8).rev().map(|digit| DIGITS[(key >> (4 * digit)) as usize & 15]));
        let mut random = Random::new(self.seed, u64::from(key));
        let mut left = self.key_size.saturating_sub(8);
        while left > 0 {
            let bits = random.next_u64();
            let count = left.min(12);
            out.extend((0..count).map(|i| b'a' + ((bits >> (5 * i)) & 15) as u8));
            left -= count;
        }
    }

    /// Appends the value of `key` in `version`.
    pub fn push_value(&self, key: u32, version: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.value_size, 0);
        let value = &mut out[start..];
        match value.split_at_mut_checked(VERSIONED_VALUE_SIZE_MIN) {
            Some((head, rest)) => {
                head.copy_from_slice(&version.to_le_bytes());
                fill_derived(self.seed, key, version, rest);
            }
            None => fill_derived(self.seed, key, 0, value),
        }
    }

    /// Appends the right reply to a get of `key` in `version`.
    pub fn push_reply<D: Dialect>(&self, key: u32, version: u64, out: &mut Vec<u8>) {
        D::push_value_head(self, key, out);
        self.push_value(key, version, out);
        out.extend_from_slice(D::VALUE_TAIL);
    }
}

pub(crate) fn push_decimal(number: usize, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let (mut left, mut start) = (number, digits.len());
    loop {
        start -= 1;
        digits[start] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// Versions of one key. Of several overlapping sets any may take effect last. While one of them is unanswered, a read
/// may return the version before them or any of theirs; after that, any of theirs until a later set is answered.
#[derive(Clone, Copy, Debug, Default)]
struct Versions {
    /// The newest version sent.
    newest: u32,
    /// The oldest version that a read sent now may return.
    oldest: u32,
    /// The oldest version among the unanswered, overlapping sets.
    oldest_overlapping: u32,
    unanswered: u32,
}

/// The requests of one thread. Each thread of all generators needs a `share` of its own: only the thread that owns a
/// key sets the key, and records which versions a read may return.
#[derive(Clone, Debug)]
pub struct Store<D> {
    space: Space,
    keys: Keys,
    random: Random,
    get_ratio: f64,
    share: (u32, u32),
    /// Versions of the owned keys; empty for a run without sets.
    versions: Vec<Versions>,
    scratch: Vec<u8>,
    dialect: PhantomData<D>,
}

impl<D: Dialect> Store<D> {
    /// Requests for `keys` of `space`; the fraction `get_ratio` are gets. `share` is (index, number of shares).
    pub fn new(space: Space, keys: Keys, get_ratio: f64, share: (u32, u32)) -> Store<D> {
        let owned_keys = keys.count() / share.1 + 1;
        let versions =
            if get_ratio < 1.0 { vec![Versions::default(); owned_keys as usize] } else { Vec::new() };
        let random = Random::new(space.seed, mix(0x6d63) ^ u64::from(share.0));
        Store { space, keys, random, get_ratio, share, versions, scratch: Vec::new(), dialect: PhantomData }
    }

    /// The key space.
    pub fn space(&self) -> &Space {
        &self.space
    }

    fn versions_of_owned(&mut self, key: u32) -> Option<&mut Versions> {
        let (index, shares) = self.share;
        if key % shares != index { None } else { self.versions.get_mut((key / shares) as usize) }
    }

    fn check_get(&mut self, sent: &SentRequest, reply: &[u8]) -> Verdict {
        let key = sent.request.key;
        let mut expected = std::mem::take(&mut self.scratch);
        expected.clear();
        D::push_value_head(&self.space, key, &mut expected);
        let value_start = expected.len();
        let reply_length = value_start + self.space.value_size + D::VALUE_TAIL.len();
        let verdict = if reply.len() < value_start || reply[..value_start] != expected {
            unexpected_line::<D>(reply, &expected, true)
        } else if reply.len() < reply_length {
            Verdict::Incomplete
        } else {
            let version = match reply[value_start..].first_chunk::<VERSIONED_VALUE_SIZE_MIN>() {
                Some(bytes) if self.space.value_size >= VERSIONED_VALUE_SIZE_MIN => {
                    u64::from_le_bytes(*bytes)
                }
                _ => 0,
            };
            self.space.push_value(key, version, &mut expected);
            expected.extend_from_slice(D::VALUE_TAIL);
            if reply[reply_length - D::VALUE_TAIL.len()..reply_length] != *D::VALUE_TAIL {
                Verdict::Garbled
            } else if reply[..reply_length] == expected && self.may_return(sent, version) {
                Verdict::Right(reply_length)
            } else {
                Verdict::Wrong(reply_length)
            }
        };
        self.scratch = expected;
        verdict
    }

    fn may_return(&mut self, sent: &SentRequest, version: u64) -> bool {
        if self.versions.is_empty() {
            return version == 0;
        }
        match self.versions_of_owned(sent.request.key) {
            Some(versions) => (sent.version..=u64::from(versions.newest)).contains(&version),
            None => true, // another thread sets this key: its versions are unknown here
        }
    }

    fn check_set(&mut self, sent: &SentRequest, reply: &[u8]) -> Verdict {
        let expected = D::STORED;
        if !reply.starts_with(expected) {
            // The set may still take effect: it stays unanswered, so that reads may return its version.
            return unexpected_line::<D>(reply, expected, false);
        }
        if let Some(versions) = self.versions_of_owned(sent.request.key) {
            versions.unanswered -= 1;
            if versions.unanswered == 0 {
                versions.oldest = versions.oldest_overlapping;
            }
        }
        Verdict::Right(expected.len())
    }
}

/// Checks a complete or partial reply whose first line is not the expected one.
fn unexpected_line<D: Dialect>(reply: &[u8], expected: &[u8], value_may_follow: bool) -> Verdict {
    if expected.starts_with(reply) {
        return Verdict::Incomplete;
    }
    match reply.iter().position(|&byte| byte == b'\n') {
        Some(end) if value_may_follow && D::announces_value(&reply[..=end]) => Verdict::Garbled,
        // The line is a miss or an error.
        Some(end) => Verdict::Wrong(end + 1),
        None if reply.len() > LINE_MAX => Verdict::Garbled,
        None => Verdict::Incomplete,
    }
}

impl<D: Dialect> Protocol for Store<D> {
    fn draw(&mut self) -> Request {
        let key = self.keys.draw(&mut self.random);
        let write = self.get_ratio < 1.0 && self.random.unit() > self.get_ratio;
        if !write {
            return Request { key, write };
        }
        // Sets use the nearest key of this thread's share, which has about the same popularity.
        let (index, shares) = self.share;
        let own_key = key - key % shares + index;
        Request { key: if own_key < self.keys.count() { own_key } else { index }, write }
    }

    fn encode(&mut self, request: Request, out: &mut Vec<u8>) -> SentRequest {
        let mut version = 0;
        if let Some(versions) = self.versions_of_owned(request.key) {
            if request.write {
                versions.newest = versions.newest.wrapping_add(1);
                if versions.unanswered == 0 {
                    versions.oldest_overlapping = versions.newest;
                }
                versions.unanswered += 1;
                version = u64::from(versions.newest);
            } else {
                version = u64::from(versions.oldest);
            }
        }
        if request.write {
            D::push_set(&self.space, request.key, version, out);
        } else {
            D::push_get(&self.space, request.key, out);
        }
        SentRequest { request, version }
    }

    fn check(&mut self, sent: &SentRequest, reply: &[u8]) -> Verdict {
        if sent.request.write { self.check_set(sent, reply) } else { self.check_get(sent, reply) }
    }

    fn explain(&self, sent: &SentRequest, reply: &[u8]) -> String {
        let mut key = Vec::new();
        self.space.push_key(sent.request.key, &mut key);
        let operation = if sent.request.write { "set" } else { "get" };
        let reason = if D::is_miss(reply) {
            "the key is missing (check that the key space was filled, and that it fits the server's memory): "
        } else if !sent.request.write && D::announces_value(reply) {
            "the value is another key's, altered, or of a wrong version: "
        } else {
            ""
        };
        format!("{operation} {}: {reason}got {}", key.escape_ascii(), excerpt(reply))
    }
}
