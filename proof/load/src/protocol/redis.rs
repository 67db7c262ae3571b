//! redis's protocol (RESP): `GET` and `SET`.

use super::store::{Dialect, Space, Store, push_decimal};

/// The requests of a thread to a redis.
pub type Redis = Store<Resp>;

/// redis's serialization protocol (RESP), version 2.
#[derive(Clone, Copy, Debug)]
pub enum Resp {}

impl Dialect for Resp {
    const VALUE_TAIL: &'static [u8] = b"\r\n";
    const STORED: &'static [u8] = b"+OK\r\n";

    fn push_get(space: &Space, key: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
        push_key_string(space, key, out);
    }

    fn push_set(space: &Space, key: u32, version: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
        push_key_string(space, key, out);
        Resp::push_value_head(space, key, out);
        space.push_value(key, version, out);
        out.extend_from_slice(b"\r\n");
    }

    fn push_value_head(space: &Space, _key: u32, out: &mut Vec<u8>) {
        push_length(space.value_size, out);
    }

    fn announces_value(line: &[u8]) -> bool {
        line.starts_with(b"$") && !Resp::is_miss(line)
    }

    fn is_miss(reply: &[u8]) -> bool {
        reply == b"$-1\r\n"
    }
}

/// Appends `$LENGTH`, the head of a bulk string.
fn push_length(length: usize, out: &mut Vec<u8>) {
    out.push(b'$');
    push_decimal(length, out);
    out.extend_from_slice(b"\r\n");
}

fn push_key_string(space: &Space, key: u32, out: &mut Vec<u8>) {
    push_length(space.key_size, out);
    space.push_key(key, out);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Keys;
    use crate::protocol::{Protocol, Request, Verdict};

    fn protocol(get_ratio: f64) -> Redis {
        let space = Space { seed: 9, key_size: 8, value_size: 21 };
        Redis::new(space, Keys::uniform(1000), get_ratio, (0, 1))
    }

    fn reply(protocol: &Redis, key: u32, version: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        protocol.space().push_reply::<Resp>(key, version, &mut bytes);
        bytes
    }

    #[test]
    fn requests_are_encoded_as_resp() {
        let mut redis = protocol(0.5);
        let mut out = Vec::new();
        redis.encode(Request { key: 5, write: false }, &mut out);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$8\r\n00000005\r\n");
        out.clear();
        let sent = redis.encode(Request { key: 5, write: true }, &mut out);
        assert!(out.starts_with(b"*3\r\n$3\r\nSET\r\n$8\r\n00000005\r\n$21\r\n"));
        let mut value = Vec::new();
        redis.space().push_value(5, sent.version, &mut value);
        assert!(out.ends_with(&[&value[..], b"\r\n"].concat()));
        assert_eq!(redis.check(&sent, b"+OK\r"), Verdict::Incomplete);
        assert_eq!(redis.check(&sent, b"+OK\r\n"), Verdict::Right(5));
    }

    #[test]
    fn every_altered_byte_of_a_get_reply_is_detected() {
        let mut redis = protocol(1.0);
        let sent = redis.encode(Request { key: 5, write: false }, &mut Vec::new());
        let right = reply(&redis, 5, 0);
        assert_eq!(redis.check(&sent, &right), Verdict::Right(right.len()));
        // Bytes after the reply belong to the next reply and are not checked.
        assert_eq!(redis.check(&sent, &[&right[..], b"$21"].concat()), Verdict::Right(right.len()));
        for cut in 0..right.len() {
            assert_eq!(redis.check(&sent, &right[..cut]), Verdict::Incomplete, "cut at {cut}");
        }
        for index in 0..right.len() {
            for flip in [0x01, 0x20, 0x80] {
                let mut altered = right.clone();
                altered[index] ^= flip;
                let verdict = redis.check(&sent, &altered);
                assert!(!matches!(verdict, Verdict::Right(_)), "byte {index} ^ {flip}: {verdict:?}");
            }
        }
    }

    #[test]
    fn misses_errors_and_values_of_other_sizes_are_wrong() {
        let mut redis = protocol(1.0);
        let sent = redis.encode(Request { key: 5, write: false }, &mut Vec::new());
        assert_eq!(redis.check(&sent, b"$-1\r\n"), Verdict::Wrong(5));
        assert!(redis.explain(&sent, b"$-1\r\n").contains("missing"));
        assert_eq!(redis.check(&sent, b"-ERR no\r\n"), Verdict::Wrong(9));
        assert_eq!(redis.check(&sent, b"$22\r\n"), Verdict::Garbled);
        let newer = reply(&redis, 5, 1);
        assert_eq!(redis.check(&sent, &newer), Verdict::Wrong(newer.len()));
    }

    #[test]
    fn gets_return_the_stored_version() {
        let mut redis = protocol(0.5);
        let out = &mut Vec::new();
        let set = redis.encode(Request { key: 7, write: true }, out);
        assert_eq!(redis.check(&set, b"+OK\r\n"), Verdict::Right(5));
        let get = redis.encode(Request { key: 7, write: false }, out);
        for (version, is_right) in [(0, false), (1, true), (2, false)] {
            let bytes = reply(&redis, 7, version);
            assert_eq!(matches!(redis.check(&get, &bytes), Verdict::Right(_)), is_right, "{version}");
        }
    }
}
