//! memcached's text protocol, as far as `get`, `set`, `delete`, `version` and `quit`; and a bounded store.

use std::collections::BTreeMap;

use super::protocol::{Outcome, Protocol};
use super::replies::Replies;

/// Longest line of a request, as in memcached.
const LINE_BYTES_MAX: usize = 2048;
/// Longest key, as in memcached.
const KEY_BYTES_MAX: usize = 250;
/// Maximum number of keys of one `get`.
const KEYS_MAX: usize = 128;
/// Longest value, as in memcached.
const VALUE_BYTES_MAX: usize = 1 << 20;

/// Bytes of memory of a stored item beside its key and its value: measured with 1,000,000 items.
const ITEM_OVERHEAD_BYTES: usize = 128;

/// Values by key, with a bound on the bytes of the items.
#[derive(Debug)]
pub(crate) struct Store {
    values: BTreeMap<Vec<u8>, (u32, Vec<u8>)>,
    bytes: usize,
    bytes_max: usize,
}

impl Protocol for Store {
    /// Keys of the first request, a `get`, whose values are in earlier replies.
    type Progress = usize;

    fn execute(&mut self, input: &[u8], reply: &mut Replies, keys_answered: &mut usize) -> Outcome {
        if reply.is_full() {
            return Outcome::Full;
        }
        let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
            return if input.len() < LINE_BYTES_MAX { Outcome::Incomplete } else { too_long(reply) };
        };
        if end >= LINE_BYTES_MAX {
            return too_long(reply);
        }
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
        let consumed = end + 1;
        match words.as_slice() {
            [b"get", keys @ ..] if keys.len() > KEYS_MAX => {
                reply.push(format!("CLIENT_ERROR more than {KEYS_MAX} keys\r\n").as_bytes());
            }
            [b"get", keys @ ..] if !keys.is_empty() => {
                for key in &keys[*keys_answered..] {
                    if reply.is_full() {
                        return Outcome::Full;
                    }
                    self.get(key, reply);
                    *keys_answered += 1;
                }
                *keys_answered = 0;
                reply.push(b"END\r\n");
            }
            [b"set", key, flags, _, length, rest @ ..] => {
                let is_silent = rest == [&b"noreply"[..]];
                let outcome = self.execute_set([key, flags, length], &input[consumed..], is_silent, reply);
                return match outcome {
                    Outcome::Answered(data_bytes) => Outcome::Answered(consumed + data_bytes),
                    other => other,
                };
            }
            [b"delete", key, rest @ ..] => {
                let line: &[u8] = if self.remove(key) { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" };
                if rest != [&b"noreply"[..]] {
                    reply.push(line);
                }
            }
            [b"version"] => reply.push(b"VERSION spillway-lab\r\n"),
            [b"quit"] => return Outcome::Close,
            _ => reply.push(b"ERROR\r\n"),
        }
        Outcome::Answered(consumed)
    }
}

impl Store {
    /// An empty store. Beyond the bound, values are refused.
    pub(crate) fn new(bytes_max: usize) -> Store {
        Store { values: BTreeMap::new(), bytes: 0, bytes_max }
    }

    /// Executes `set`. `data` begins with the value; the returned number of bytes includes the value's line end.
    fn execute_set(
        &mut self,
        [key, flags, length]: [&[u8]; 3],
        data: &[u8],
        is_silent: bool,
        reply: &mut Replies,
    ) -> Outcome {
        let numbers = number(flags).zip(number(length).map(|length| length as usize));
        let Some((flags, length)) = numbers.filter(|(_, length)| *length <= VALUE_BYTES_MAX) else {
            reply.push(b"SERVER_ERROR object too large for cache\r\n");
            return Outcome::Close;
        };
        let Some(data) = data.get(..length + 2) else { return Outcome::Incomplete };
        let Some(value) = data.strip_suffix(b"\r\n") else {
            reply.push(b"CLIENT_ERROR bad data chunk\r\n");
            return Outcome::Close;
        };
        let line = self.set(key, flags, value);
        if !is_silent {
            reply.push(line);
        }
        Outcome::Answered(data.len())
    }

    fn get(&self, key: &[u8], reply: &mut Replies) {
        let Some((flags, value)) = self.values.get(key) else { return };
        reply.push(b"VALUE ");
        reply.push(key);
        reply.push(format!(" {flags} {}\r\n", value.len()).as_bytes());
        reply.push(value);
        reply.push(b"\r\n");
    }

    fn set(&mut self, key: &[u8], flags: u32, value: &[u8]) -> &'static [u8] {
        if key.len() > KEY_BYTES_MAX {
            return b"CLIENT_ERROR bad command line format\r\n";
        }
        self.remove(key);
        let bytes = item_bytes(key, value);
        if self.bytes + bytes > self.bytes_max {
            return b"SERVER_ERROR out of memory storing object\r\n";
        }
        self.bytes += bytes;
        self.values.insert(key.to_vec(), (flags, value.to_vec()));
        b"STORED\r\n"
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        let Some((_, value)) = self.values.remove(key) else { return false };
        self.bytes -= item_bytes(key, &value);
        true
    }
}

/// Bytes of memory of an item.
fn item_bytes(key: &[u8], value: &[u8]) -> usize {
    ITEM_OVERHEAD_BYTES + key.len() + value.len()
}

fn number(word: &[u8]) -> Option<u32> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn too_long(reply: &mut Replies) -> Outcome {
    reply.push(b"CLIENT_ERROR line too long\r\n");
    Outcome::Close
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes all requests of an input. Returns the replies, and how many bytes were consumed.
    fn run(store: &mut Store, input: &[u8]) -> (String, usize, Outcome) {
        let (mut reply, mut at, mut keys) = (Replies::default(), 0, 0);
        loop {
            match store.execute(&input[at..], &mut reply, &mut keys) {
                Outcome::Answered(bytes) => at += bytes,
                other => return (String::from_utf8(reply.waiting().to_vec()).unwrap(), at, other),
            }
        }
    }

    #[test]
    fn values_are_stored_read_and_deleted() {
        let mut store = Store::new(1000);
        let input = b"set k 7 0 5\r\nab\r\nc\r\nget k none k\r\ndelete k\r\ndelete k\r\nget k\r\n";
        let value = "VALUE k 7 5\r\nab\r\nc\r\n";
        let replies = format!("STORED\r\n{value}{value}END\r\nDELETED\r\nNOT_FOUND\r\nEND\r\n");
        assert_eq!(run(&mut store, input), (replies, input.len(), Outcome::Incomplete));
        let silent = b"set k 0 0 1 noreply\r\nx\r\ndelete k noreply\r\nversion\r\nnonsense\r\n";
        assert_eq!(run(&mut store, silent).0, "VERSION spillway-lab\r\nERROR\r\n");
        assert_eq!(run(&mut store, b"quit\r\nversion\r\n"), (String::new(), 0, Outcome::Close));
    }

    #[test]
    fn requests_are_incomplete_at_every_cut() {
        let request = b"set key 1 0 4\r\n\r\n\r\n\r\n";
        for length in 0..request.len() {
            let mut store = Store::new(1000);
            let outcome = run(&mut store, &request[..length]);
            assert_eq!(outcome, (String::new(), 0, Outcome::Incomplete), "{length} bytes");
        }
        assert_eq!(run(&mut Store::new(1000), request).0, "STORED\r\n");
    }

    #[test]
    fn keys_values_lines_and_the_store_are_bounded() {
        let mut store = Store::new(2 * ITEM_OVERHEAD_BYTES + 10);
        assert_eq!(run(&mut store, b"set a 0 0 9\r\n123456789\r\nset b 0 0 0\r\n\r\n").0, {
            "STORED\r\nSERVER_ERROR out of memory storing object\r\n"
        });
        // A new value of the same key replaces the old one.
        assert_eq!(run(&mut store, b"set a 0 0 8\r\n12345678\r\nset b 0 0 0\r\n\r\n").0, {
            "STORED\r\nSTORED\r\n"
        });
        let long_key = format!("set {} 0 0 0\r\n\r\n", "k".repeat(KEY_BYTES_MAX + 1));
        assert!(run(&mut store, long_key.as_bytes()).0.starts_with("CLIENT_ERROR"));
        let long_value = format!("set k 0 0 {}\r\n", VALUE_BYTES_MAX + 1);
        assert_eq!(run(&mut store, long_value.as_bytes()).2, Outcome::Close);
        assert_eq!(run(&mut store, &[b'x'; LINE_BYTES_MAX]).2, Outcome::Close);
        assert_eq!(run(&mut store, &[b'x'; LINE_BYTES_MAX - 1]).2, Outcome::Incomplete);
        assert_eq!(run(&mut store, b"set k 0 0 1\r\nlong\r\n").2, Outcome::Close);
    }
    #[test]
    fn items_without_values_count_with_their_memory() {
        let mut store = Store::new(10 * (ITEM_OVERHEAD_BYTES + 1));
        let input: String = (0..=10).map(|key| format!("set {key:x} 0 0 0\r\n\r\n")).collect();
        let replies = "STORED\r\n".repeat(10) + "SERVER_ERROR out of memory storing object\r\n";
        assert_eq!(run(&mut store, input.as_bytes()).0, replies);
        assert_eq!(run(&mut store, b"delete 0\r\nset a 0 0 0\r\n\r\n").0, "DELETED\r\nSTORED\r\n");
    }

    #[test]
    fn a_get_stops_while_replies_wait_and_continues_after_them() {
        let mut store = Store::new(1 << 20);
        store.set(b"a", 0, &[b'v'; 30_000]);
        let request = b"get a a none a a a\r\n";
        let (mut reply, mut keys, mut answered) = (Replies::default(), 0, Vec::new());
        let mut outcomes = Vec::new();
        while outcomes.last() != Some(&Outcome::Answered(request.len())) {
            outcomes.push(store.execute(request, &mut reply, &mut keys));
            assert!(reply.waiting().len() < 100_000);
            answered.extend_from_slice(reply.waiting());
            reply.take(reply.waiting().len());
        }
        assert_eq!((outcomes.len(), outcomes[0], keys), (2, Outcome::Full, 0));
        let value = format!("VALUE a 0 30000\r\n{}\r\n", "v".repeat(30_000));
        assert_eq!(answered, format!("{}END\r\n", value.repeat(5)).as_bytes());
    }

    #[test]
    fn a_get_has_a_bounded_number_of_keys() {
        let mut store = Store::new(1000);
        let get = |keys| format!("get{}\r\n", " a".repeat(keys));
        assert_eq!(run(&mut store, get(KEYS_MAX).as_bytes()).0, "END\r\n");
        assert_eq!(run(&mut store, get(KEYS_MAX + 1).as_bytes()).0, "CLIENT_ERROR more than 128 keys\r\n");
    }
}
