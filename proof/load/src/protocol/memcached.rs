//! memcached's text protocol: `get` and `set`.

use super::store::{Dialect, Space, Store, push_decimal};

/// One thread's requests to a memcached server, and the check of the replies.
pub type Memcached = Store<Text>;

/// memcached's text protocol.
#[derive(Clone, Copy, Debug)]
pub enum Text {}

impl Dialect for Text {
    const VALUE_TAIL: &'static [u8] = b"\r\nEND\r\n";
    const STORED: &'static [u8] = b"STORED\r\n";

    fn push_get(space: &Space, key: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(b"get ");
        space.push_key(key, out);
        out.extend_from_slice(b"\r\n");
    }

    fn push_set(space: &Space, key: u32, version: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"set ");
        space.push_key(key, out);
        out.extend_from_slice(b" 0 0 ");
        push_decimal(space.value_size, out);
        out.extend_from_slice(b"\r\n");
        space.push_value(key, version, out);
        out.extend_from_slice(b"\r\n");
    }

    fn push_value_head(space: &Space, key: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(b"VALUE ");
        space.push_key(key, out);
        out.extend_from_slice(b" 0 ");
        push_decimal(space.value_size, out);
        out.extend_from_slice(b"\r\n");
    }

    fn announces_value(line: &[u8]) -> bool {
        line.starts_with(b"VALUE")
    }

    fn is_miss(reply: &[u8]) -> bool {
        reply == b"END\r\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Keys;
    use crate::protocol::store::LINE_MAX;
    use crate::protocol::{Protocol, Request, Verdict};

    fn protocol(get_ratio: f64) -> Memcached {
        let space = Space { seed: 9, key_size: 32, value_size: 64 };
        Memcached::new(space, Keys::zipf(1000, 0.99), get_ratio, (0, 1))
    }

    fn reply(protocol: &Memcached, key: u32, version: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        protocol.space().push_reply::<Text>(key, version, &mut bytes);
        bytes
    }

    #[test]
    fn keys_have_the_configured_size_and_are_printable_and_distinct() {
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
    fn every_altered_byte_of_a_get_reply_is_detected() {
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
    fn misses_errors_and_other_values_are_not_accepted() {
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
    fn gets_may_return_the_stored_version_or_an_overlapping_newer_one() {
        let mut memcached = protocol(0.5);
        let out = &mut Vec::new();
        let first = memcached.encode(Request { key: 5, write: true }, out);
        let during_the_set = memcached.encode(Request { key: 5, write: false }, out);
        for version in [0, 1] {
            let bytes = reply(&memcached, 5, version);
            assert_eq!(memcached.check(&during_the_set, &bytes), Verdict::Right(bytes.len()));
        }
        assert_eq!(memcached.check(&first, b"STORED\r\n"), Verdict::Right(8));
        let after_the_set = memcached.encode(Request { key: 5, write: false }, out);
        for (version, is_right) in [(0, false), (1, true), (2, false)] {
            let bytes = reply(&memcached, 5, version);
            assert_eq!(
                matches!(memcached.check(&after_the_set, &bytes), Verdict::Right(_)),
                is_right,
                "{version}"
            );
        }
    }

    #[test]
    fn overlapping_sets_may_take_effect_in_either_order() {
        let mut memcached = protocol(0.5);
        let out = &mut Vec::new();
        let first = memcached.encode(Request { key: 5, write: true }, out);
        let second = memcached.encode(Request { key: 5, write: true }, out);
        assert_eq!(memcached.check(&second, b"STORED\r\n"), Verdict::Right(8));
        assert_eq!(memcached.check(&first, b"STORED\r\n"), Verdict::Right(8));
        let read = memcached.encode(Request { key: 5, write: false }, out);
        for (version, is_right) in [(0, false), (1, true), (2, true)] {
            let bytes = reply(&memcached, 5, version);
            assert_eq!(matches!(memcached.check(&read, &bytes), Verdict::Right(_)), is_right, "{version}");
        }
        assert_eq!(memcached.check(&first, b"NOT_STORED\r\n"), Verdict::Wrong(12));
    }

    #[test]
    fn each_thread_sets_only_keys_of_its_share() {
        let space = Space { seed: 9, key_size: 32, value_size: 64 };
        for index in 0..3 {
            let share = (index, 3);
            let mut memcached = Memcached::new(space.clone(), Keys::uniform(100), 0.5, share);
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
