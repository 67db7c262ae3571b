//! memcached's text protocol: `get` and `set`, every reply checked to the last byte.

use super::{Protocol, Request, Sent, Verdict, derive, excerpt};
use crate::keys::Keys;
use crate::random::{Random, mix};

/// Values this long or longer begin with their version (8 bytes), so that sets can be checked.
pub const VERSIONED_VALUE_SIZE_MIN: usize = 8;
/// The longest line that is waited for before the reply counts as garbled.
const LINE_MAX: usize = 2048;

/// Key and value bytes of a key space, which follow from the seed alone.
#[derive(Clone, Debug)]
pub struct Space {
    /// The seed.
    pub seed: u64,
    /// Keys are this long: at least 8, at most 250 bytes.
    pub key_size: usize,
    /// Values are this long.
    pub value_size: usize,
}

impl Space {
    /// Appends the name of key number `key`: 8 hexadecimal digits, then letters that follow from the seed, so
    /// that runs with different seeds do not read each other's data.
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
                derive(self.seed, key, version, rest);
            }
            None => derive(self.seed, key, 0, value),
        }
    }

    /// Appends `VALUE <key> 0 <size>\r\n`.
    pub fn push_value_line(&self, key: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(b"VALUE ");
        self.push_key(key, out);
        out.extend_from_slice(b" 0 ");
        push_decimal(self.value_size, out);
        out.extend_from_slice(b"\r\n");
    }

    /// Appends a whole `set`.
    pub fn push_set(&self, key: u32, version: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"set ");
        self.push_key(key, out);
        out.extend_from_slice(b" 0 0 ");
        push_decimal(self.value_size, out);
        out.extend_from_slice(b"\r\n");
        self.push_value(key, version, out);
        out.extend_from_slice(b"\r\n");
    }
}

fn push_decimal(number: usize, out: &mut Vec<u8>) {
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

/// What is known of one key's versions. Sets of one key can overlap; the server may then keep any of them, and
/// nothing newer may be demanded of a read until all have been answered.
#[derive(Clone, Copy, Debug, Default)]
struct Versions {
    /// The newest version ever sent.
    newest: u32,
    /// The oldest version that a read sent now may return.
    oldest: u32,
    /// The oldest version among the sets that overlap now.
    group: u32,
    unanswered: u32,
}

/// One thread's requests. Threads (and generators) that set keys must each have their own `share`: only a key's
/// owner sets it, and so knows which versions a read may return.
#[derive(Clone, Debug)]
pub struct Memcached {
    space: Space,
    keys: Keys,
    random: Random,
    get_ratio: f64,
    share: (u32, u32),
    /// Empty while nothing is ever set.
    versions: Vec<Versions>,
    scratch: Vec<u8>,
}

impl Memcached {
    /// Requests for `keys` of `space`, of which the fraction `get_ratio` are gets. `share` is (index, of).
    pub fn new(space: Space, keys: Keys, get_ratio: f64, share: (u32, u32)) -> Memcached {
        let owned = keys.count() / share.1 + 1;
        let versions = if get_ratio < 1.0 { vec![Versions::default(); owned as usize] } else { Vec::new() };
        let random = Random::new(space.seed, mix(0x6d63) ^ u64::from(share.0));
        Memcached { space, keys, random, get_ratio, share, versions, scratch: Vec::new() }
    }

    fn owned(&mut self, key: u32) -> Option<&mut Versions> {
        let (index, of) = self.share;
        if key % of != index { None } else { self.versions.get_mut((key / of) as usize) }
    }

    fn check_get(&mut self, sent: &Sent, reply: &[u8]) -> Verdict {
        let key = sent.request.key;
        let mut expected = std::mem::take(&mut self.scratch);
        expected.clear();
        self.space.push_value_line(key, &mut expected);
        let head = expected.len();
        let whole = head + self.space.value_size + b"\r\nEND\r\n".len();
        let verdict = if reply.len() < head || reply[..head] != expected {
            unexpected_line(reply, &expected, true)
        } else if reply.len() < whole {
            Verdict::Incomplete
        } else {
            let version = match reply[head..].first_chunk::<VERSIONED_VALUE_SIZE_MIN>() {
                Some(bytes) if self.space.value_size >= VERSIONED_VALUE_SIZE_MIN => {
                    u64::from_le_bytes(*bytes)
                }
                _ => 0,
            };
            self.space.push_value(key, version, &mut expected);
            expected.extend_from_slice(b"\r\nEND\r\n");
            if reply[whole - 5..whole] != *b"END\r\n" {
                Verdict::Garbled
            } else if reply[..whole] == expected && self.may_return(sent, version) {
                Verdict::Right(whole)
            } else {
                Verdict::Wrong(whole)
            }
        };
        self.scratch = expected;
        verdict
    }

    fn may_return(&mut self, sent: &Sent, version: u64) -> bool {
        if self.versions.is_empty() {
            return version == 0;
        }
        match self.owned(sent.request.key) {
            Some(versions) => (sent.version..=u64::from(versions.newest)).contains(&version),
            None => true, // another thread's key: the bytes were checked, its versions are not known here
        }
    }

    fn check_set(&mut self, sent: &Sent, reply: &[u8]) -> Verdict {
        let expected = b"STORED\r\n";
        if !reply.starts_with(expected) {
            // The set may still take effect, so `unanswered` stays up and reads of this key stay lenient.
            return unexpected_line(reply, expected, false);
        }
        if let Some(versions) = self.owned(sent.request.key) {
            versions.unanswered -= 1;
            if versions.unanswered == 0 {
                versions.oldest = versions.group;
            }
        }
        Verdict::Right(expected.len())
    }
}

/// Judges a reply whose first line is not the expected one, as far as it has come.
fn unexpected_line(reply: &[u8], expected: &[u8], value_may_follow: bool) -> Verdict {
    if expected.starts_with(reply) {
        return Verdict::Incomplete;
    }
    match reply.iter().position(|&byte| byte == b'\n') {
        // Another key's value, or one of another size: where it ends is anyone's guess.
        Some(_) if value_may_follow && reply.starts_with(b"VALUE") => Verdict::Garbled,
        // A miss, or an error line.
        Some(end) => Verdict::Wrong(end + 1),
        None if reply.len() > LINE_MAX => Verdict::Garbled,
        None => Verdict::Incomplete,
    }
}

impl Protocol for Memcached {
    fn draw(&mut self) -> Request {
        let key = self.keys.draw(&mut self.random);
        let write = self.get_ratio < 1.0 && self.random.unit() > self.get_ratio;
        if !write {
            return Request { key, write };
        }
        // The nearest key of this thread's share: as popular, and nobody else's.
        let (index, of) = self.share;
        let own = key - key % of + index;
        Request { key: if own < self.keys.count() { own } else { index }, write }
    }

    fn encode(&mut self, request: Request, out: &mut Vec<u8>) -> Sent {
        let mut version = 0;
        if let Some(versions) = self.owned(request.key) {
            if request.write {
                versions.newest = versions.newest.wrapping_add(1);
                if versions.unanswered == 0 {
                    versions.group = versions.newest;
                }
                versions.unanswered += 1;
                version = u64::from(versions.newest);
            } else {
                version = u64::from(versions.oldest);
            }
        }
        if request.write {
            self.space.push_set(request.key, version, out);
        } else {
            out.extend_from_slice(b"get ");
            self.space.push_key(request.key, out);
            out.extend_from_slice(b"\r\n");
        }
        Sent { request, version }
    }

    fn check(&mut self, sent: &Sent, reply: &[u8]) -> Verdict {
        if sent.request.write { self.check_set(sent, reply) } else { self.check_get(sent, reply) }
    }

    fn explain(&self, sent: &Sent, reply: &[u8]) -> String {
        let mut key = Vec::new();
        self.space.push_key(sent.request.key, &mut key);
        let what = if sent.request.write { "set" } else { "get" };
        let why = match reply {
            b"END\r\n" => "the key is missing (was the key space filled? does it fit the server's memory?): ",
            _ if reply.starts_with(b"VALUE") => {
                "the value is another key's, altered, or of a wrong version: "
            }
            _ => "",
        };
        format!("{what} {}: {why}got {}", key.escape_ascii(), excerpt(reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocol(get_ratio: f64) -> Memcached {
        let space = Space { seed: 9, key_size: 32, value_size: 64 };
        Memcached::new(space, Keys::zipf(1000, 0.99), get_ratio, (0, 1))
    }

    fn reply(protocol: &Memcached, key: u32, version: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        protocol.space.push_value_line(key, &mut bytes);
        protocol.space.push_value(key, version, &mut bytes);
        bytes.extend_from_slice(b"\r\nEND\r\n");
        bytes
    }

    #[test]
    fn sizes_are_as_asked_and_keys_are_printable_and_different() {
        let mut seen = std::collections::HashSet::new();
        for key_size in [8, 9, 20, 21, 32, 250] {
            let space = Space { seed: 1, key_size, value_size: 64 };
            for key in [0, 1, 99_999, u32::MAX] {
                let mut bytes = Vec::new();
                space.push_key(key, &mut bytes);
                assert_eq!(bytes.len(), key_size);
                assert!(bytes.iter().all(u8::is_ascii_alphanumeric));
                assert!(seen.insert(bytes));
            }
        }
        let mut request = Vec::new();
        protocol(1.0).encode(Request { key: 5, write: false }, &mut request);
        assert_eq!(request.len(), "get ".len() + 32 + 2);
    }

    #[test]
    fn every_single_wrong_byte_of_a_get_is_caught() {
        let mut memcached = protocol(1.0);
        let sent = memcached.encode(Request { key: 5, write: false }, &mut Vec::new());
        let right = reply(&memcached, 5, 0);
        assert_eq!(memcached.check(&sent, &right), Verdict::Right(right.len()));
        for cut in 0..right.len() {
            assert_eq!(memcached.check(&sent, &right[..cut]), Verdict::Incomplete, "cut at {cut}");
        }
        for index in 0..right.len() {
            for flip in [0x01, 0x20, 0x80] {
                let mut altered = right.clone();
                altered[index] ^= flip;
                let verdict = memcached.check(&sent, &altered);
                assert!(!matches!(verdict, Verdict::Right(_)), "byte {index} ^ {flip}: {verdict:?}");
            }
        }
    }

    #[test]
    fn a_miss_an_error_and_another_keys_value_are_wrong() {
        let mut memcached = protocol(1.0);
        let sent = memcached.encode(Request { key: 5, write: false }, &mut Vec::new());
        assert_eq!(memcached.check(&sent, b"END\r\n"), Verdict::Wrong(5));
        assert_eq!(memcached.check(&sent, b"SERVER_ERROR busy\r\n"), Verdict::Wrong(19));
        assert_eq!(memcached.check(&sent, b"SERVER_ERROR bu"), Verdict::Incomplete);
        assert_eq!(memcached.check(&sent, &vec![b'x'; LINE_MAX + 1]), Verdict::Garbled);
        let other = reply(&memcached, 6, 0);
        assert_eq!(memcached.check(&sent, &other), Verdict::Garbled);
        let newer = reply(&memcached, 5, 1);
        assert_eq!(memcached.check(&sent, &newer), Verdict::Wrong(newer.len()));
        assert!(memcached.explain(&sent, b"END\r\n").contains("missing"));
    }

    #[test]
    fn reads_see_what_was_stored_and_nothing_older() {
        let mut memcached = protocol(0.5);
        let out = &mut Vec::new();
        let first = memcached.encode(Request { key: 5, write: true }, out);
        let during = memcached.encode(Request { key: 5, write: false }, out);
        for version in [0, 1] {
            let bytes = reply(&memcached, 5, version);
            assert_eq!(memcached.check(&during, &bytes), Verdict::Right(bytes.len()));
        }
        assert_eq!(memcached.check(&first, b"STORED\r\n"), Verdict::Right(8));
        let after = memcached.encode(Request { key: 5, write: false }, out);
        for (version, right) in [(0, false), (1, true), (2, false)] {
            let bytes = reply(&memcached, 5, version);
            assert_eq!(matches!(memcached.check(&after, &bytes), Verdict::Right(_)), right, "{version}");
        }
    }

    #[test]
    fn sets_that_overlap_may_end_in_either_order() {
        let mut memcached = protocol(0.5);
        let out = &mut Vec::new();
        let a = memcached.encode(Request { key: 5, write: true }, out);
        let b = memcached.encode(Request { key: 5, write: true }, out);
        assert_eq!(memcached.check(&b, b"STORED\r\n"), Verdict::Right(8));
        assert_eq!(memcached.check(&a, b"STORED\r\n"), Verdict::Right(8));
        let read = memcached.encode(Request { key: 5, write: false }, out);
        for (version, right) in [(0, false), (1, true), (2, true)] {
            let bytes = reply(&memcached, 5, version);
            assert_eq!(matches!(memcached.check(&read, &bytes), Verdict::Right(_)), right, "{version}");
        }
        assert_eq!(memcached.check(&a, b"NOT_STORED\r\n"), Verdict::Wrong(12));
    }

    #[test]
    fn a_share_sets_only_its_own_keys() {
        let space = Space { seed: 9, key_size: 32, value_size: 64 };
        for index in 0..3 {
            let mut memcached = Memcached::new(space.clone(), Keys::uniform(100), 0.5, (index, 3));
            let mut writes = 0;
            for _ in 0..3000 {
                let request = memcached.draw();
                if request.write {
                    writes += 1;
                    assert_eq!(request.key % 3, index);
                }
                assert!(request.key < 100);
            }
            assert!((1300..1700).contains(&writes));
        }
    }
}
