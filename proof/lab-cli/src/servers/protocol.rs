//! memcached's text protocol, as far as `get`, `set`, `delete`, `version` and `quit`; and a bounded store.

use std::collections::BTreeMap;

/// Longest line of a request, as in memcached.
const LINE_BYTES_MAX: usize = 2048;
/// Longest key, as in memcached.
const KEY_BYTES_MAX: usize = 250;
/// Longest value, as in memcached.
pub(super) const VALUE_BYTES_MAX: usize = 1 << 20;

/// Values by key, with a bound on the bytes of both.
#[derive(Debug)]
pub(crate) struct Store {
    values: BTreeMap<Vec<u8>, (u32, Vec<u8>)>,
    bytes: usize,
    bytes_max: usize,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A request of this many bytes was answered.
    Answered(usize),
    /// The request is not complete yet.
    Incomplete,
    /// The connection must be closed: the client has sent `quit`, or the start of the next request cannot be found.
    Close,
}

impl Store {
    /// An empty store. Beyond the bound, values are refused.
    pub(crate) fn new(bytes_max: usize) -> Store {
        Store { values: BTreeMap::new(), bytes: 0, bytes_max }
    }

    /// Executes the first request in `input`, and appends its reply to `reply`.
    pub(super) fn execute(&mut self, input: &[u8], reply: &mut Vec<u8>) -> Outcome {
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
            [b"get", keys @ ..] if !keys.is_empty() => self.get(keys, reply),
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
                    reply.extend_from_slice(line);
                }
            }
            [b"version"] => reply.extend_from_slice(b"VERSION spillway-lab\r\n"),
            [b"quit"] => return Outcome::Close,
            _ => reply.extend_from_slice(b"ERROR\r\n"),
        }
        Outcome::Answered(consumed)
    }

    /// Executes `set`. `data` begins with the value; the returned number of bytes includes the value's line end.
    fn execute_set(
        &mut self,
        [key, flags, length]: [&[u8]; 3],
        data: &[u8],
        is_silent: bool,
        reply: &mut Vec<u8>,
    ) -> Outcome {
        let numbers = number(flags).zip(number(length).map(|length| length as usize));
        let Some((flags, length)) = numbers.filter(|(_, length)| *length <= VALUE_BYTES_MAX) else {
            reply.extend_from_slice(b"SERVER_ERROR object too large for cache\r\n");
            return Outcome::Close;
        };
        let Some(data) = data.get(..length + 2) else { return Outcome::Incomplete };
        let Some(value) = data.strip_suffix(b"\r\n") else {
            reply.extend_from_slice(b"CLIENT_ERROR bad data chunk\r\n");
            return Outcome::Close;
        };
        let line = self.set(key, flags, value);
        if !is_silent {
            reply.extend_from_slice(line);
        }
        Outcome::Answered(data.len())
    }

    fn get(&self, keys: &[&[u8]], reply: &mut Vec<u8>) {
        for key in keys {
            let Some((flags, value)) = self.values.get(*key) else { continue };
            reply.extend_from_slice(b"VALUE ");
            reply.extend_from_slice(key);
            reply.extend_from_slice(format!(" {flags} {}\r\n", value.len()).as_bytes());
            reply.extend_from_slice(value);
            reply.extend_from_slice(b"\r\n");
        }
        reply.extend_from_slice(b"END\r\n");
    }

    fn set(&mut self, key: &[u8], flags: u32, value: &[u8]) -> &'static [u8] {
        if key.len() > KEY_BYTES_MAX {
            return b"CLIENT_ERROR bad command line format\r\n";
        }
        self.remove(key);
        let bytes = key.len() + value.len();
        if self.bytes + bytes > self.bytes_max {
            return b"SERVER_ERROR out of memory storing object\r\n";
        }
        self.bytes += bytes;
        self.values.insert(key.to_vec(), (flags, value.to_vec()));
        b"STORED\r\n"
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        let Some((_, value)) = self.values.remove(key) else { return false };
        self.bytes -= key.len() + value.len();
        true
    }
}

fn number(word: &[u8]) -> Option<u32> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn too_long(reply: &mut Vec<u8>) -> Outcome {
    reply.extend_from_slice(b"CLIENT_ERROR line too long\r\n");
    Outcome::Close
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes all requests of an input. Returns the replies, and how many bytes were consumed.
    fn run(store: &mut Store, input: &[u8]) -> (String, usize, Outcome) {
        let (mut reply, mut at) = (Vec::new(), 0);
        loop {
            match store.execute(&input[at..], &mut reply) {
                Outcome::Answered(bytes) => at += bytes,
                other => return (String::from_utf8(reply).unwrap(), at, other),
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
            let mut store = Store::new(100);
            let outcome = run(&mut store, &request[..length]);
            assert_eq!(outcome, (String::new(), 0, Outcome::Incomplete), "{length} bytes");
        }
        assert_eq!(run(&mut Store::new(100), request).0, "STORED\r\n");
    }

    #[test]
    fn keys_values_lines_and_the_store_are_bounded() {
        let mut store = Store::new(10);
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
}
