//! HTTP/1.1: `GET` of a target that the server returns as the body, or of an object that the target names, as
//! `spillway-lab http` does.

use super::{Protocol, Request, SentRequest, Verdict, excerpt};
use crate::objects::{self, Rest};
use crate::random::{Random, mix};

/// A response without the end of its head in this many bytes counts as garbled.
const HEAD_MAX: usize = 2048;
/// Maximum number of fields in the head of a response.
const FIELDS_MAX: usize = 32;

/// Requests whose targets have one length. Each target differs from the one before it.
#[derive(Clone, Debug)]
pub struct Http {
    seed: u64,
    last_number: u32,
    target_size: usize,
    /// Size of the objects; `None`: the body is the target.
    object_size: Option<u32>,
    expected: Vec<u8>,
}

impl Http {
    /// Targets of `size` bytes (at least 1), derived from `seed`; with objects, their size follows.
    pub fn new(seed: u64, size: usize, object_size: Option<u32>) -> Http {
        Http { seed, last_number: 0, target_size: size, object_size, expected: Vec::new() }
    }

    /// Appends the target of request `number`: a slash, then letters, then an object's size.
    fn push_target(&self, number: u32, out: &mut Vec<u8>) {
        let mut random = Random::new(self.seed ^ mix(u64::from(number)), 0);
        out.push(b'/');
        let mut left = self.target_size.saturating_sub(1);
        while left > 0 {
            let bits = random.next_u64();
            let count = left.min(16);
            out.extend((0..count).map(|i| b'a' + ((bits >> (4 * i)) & 15) as u8));
            left -= count;
        }
        if let Some(bytes) = self.object_size {
            objects::push_size(bytes, out);
        }
    }

    /// Calls `check` with the target of a request.
    fn with_target<T>(&mut self, request: Request, check: impl FnOnce(&[u8]) -> T) -> T {
        let mut target = std::mem::take(&mut self.expected);
        target.clear();
        self.push_target(request.key, &mut target);
        let result = check(&target);
        self.expected = target;
        result
    }
}

/// The head of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head {
    Incomplete,
    /// No head, or one that does not state the length of the body once: the response has no known end.
    Garbled,
    /// The status code, the length of the head, and that of the whole response.
    Complete {
        status: u16,
        head: usize,
        end: usize,
    },
}

impl Head {
    fn parse(reply: &[u8]) -> Head {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let head = match response.parse(&reply[..reply.len().min(HEAD_MAX)]) {
            Ok(httparse::Status::Complete(head)) => head,
            Ok(httparse::Status::Partial) if reply.len() < HEAD_MAX => return Head::Incomplete,
            _ => return Head::Garbled,
        };
        let mut lengths =
            response.headers.iter().filter(|field| field.name.eq_ignore_ascii_case("content-length"));
        let length = match (lengths.next(), lengths.next()) {
            (Some(field), None) => std::str::from_utf8(field.value).ok().and_then(|text| text.parse().ok()),
            _ => None,
        };
        let end = length.and_then(|length: usize| head.checked_add(length));
        match (response.code, end) {
            (Some(status), Some(end)) => Head::Complete { status, head, end },
            _ => Head::Garbled,
        }
    }
}

impl Protocol for Http {
    fn draw(&mut self) -> Request {
        self.last_number = self.last_number.wrapping_add(1);
        Request { key: self.last_number, write: false }
    }

    fn encode(&mut self, request: Request, out: &mut Vec<u8>) -> SentRequest {
        out.extend_from_slice(b"GET ");
        self.push_target(request.key, out);
        out.extend_from_slice(b" HTTP/1.1\r\nHost: spillway-load\r\n\r\n");
        SentRequest { request, version: 0 }
    }

    fn check(&mut self, sent: &SentRequest, reply: &[u8]) -> Verdict {
        let (status, head, end) = match Head::parse(reply) {
            Head::Incomplete => return Verdict::Incomplete,
            Head::Garbled => return Verdict::Garbled,
            Head::Complete { status, head, end } => (status, head, end),
        };
        match self.object_size {
            Some(bytes) if status == 200 && end - head == bytes as usize => {
                let rest = self.with_target(sent.request, |target| Rest::of(target, bytes));
                match self.check_rest(rest, &reply[head..]) {
                    Verdict::Right(length) => Verdict::Right(head + length),
                    other => other,
                }
            }
            _ => {
                let Some(body) = reply.get(head..end) else { return Verdict::Incomplete };
                let has_object = self.object_size.is_some();
                let is_body = self.with_target(sent.request, |target| body == target);
                if status == 200 && is_body && !has_object {
                    Verdict::Right(end)
                } else {
                    Verdict::Wrong(end)
                }
            }
        }
    }

    fn check_rest(&mut self, mut rest: Rest, reply: &[u8]) -> Verdict {
        let length = rest.len().min(reply.len());
        if !rest.take(&reply[..length]) {
            return Verdict::Garbled;
        }
        if rest.is_empty() { Verdict::Right(length) } else { Verdict::Continues(rest) }
    }

    fn explain(&self, sent: &SentRequest, reply: &[u8]) -> String {
        let mut target = Vec::new();
        self.push_target(sent.request.key, &mut target);
        format!("GET {}, got {}", excerpt(&target), excerpt(reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: &str, body: &[u8]) -> Vec<u8> {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    }

    /// A sent request, and its target.
    fn sent(http: &mut Http) -> (SentRequest, Vec<u8>) {
        let (mut bytes, request) = (Vec::new(), http.draw());
        let sent = http.encode(request, &mut bytes);
        let target = bytes.split(|byte| *byte == b' ').nth(1).unwrap().to_vec();
        (sent, target)
    }

    #[test]
    fn response_is_right_when_it_is_complete_and_each_altered_byte_of_its_body_is_detected() {
        let mut http = Http::new(7, 21, None);
        let (request, target) = sent(&mut http);
        assert_eq!(target.len(), 21);
        let right = response("200 OK", &target);
        for cut in 0..right.len() {
            assert_eq!(http.check(&request, &right[..cut]), Verdict::Incomplete, "cut at {cut}");
        }
        let and_more = [&right[..], b"HTTP"].concat();
        assert_eq!(http.check(&request, &and_more), Verdict::Right(right.len()));
        for index in right.len() - target.len()..right.len() {
            let mut altered = right.clone();
            altered[index] ^= 0x01;
            assert_eq!(http.check(&request, &altered), Verdict::Wrong(right.len()), "byte {index}");
        }
        let (other, _) = sent(&mut http);
        assert_eq!(
            http.check(&other, &right),
            Verdict::Wrong(right.len()),
            "the response to another request"
        );
        assert!(http.explain(&other, &right).starts_with("GET \"/"));
    }

    #[test]
    fn refusals_are_wrong_and_responses_without_a_known_end_are_garbled() {
        let mut http = Http::new(7, 21, None);
        let (request, target) = sent(&mut http);
        let refused = response("400 Bad Request", &target);
        assert_eq!(http.check(&request, &refused), Verdict::Wrong(refused.len()));
        for garbled in [
            &b"HTTP/1.1 200 OK\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n",
            b"VALUE",
            &[b'\n'; HEAD_MAX],
        ] {
            assert_eq!(http.check(&request, garbled), Verdict::Garbled, "{}", garbled.escape_ascii());
        }
    }

    #[test]
    fn objects_are_checked_in_parts_and_each_altered_missing_or_foreign_byte_is_detected() {
        const BYTES: u32 = 200_000;
        let mut http = Http::new(7, 21, Some(BYTES));
        let (request, target) = sent(&mut http);
        assert!(target.ends_with(b"?bytes=200000"));
        let (mut rest, mut body) = (Rest::of(&target, BYTES), Vec::new());
        while !rest.is_empty() {
            body.extend_from_slice(rest.first_part());
            rest.advance(rest.first_part().len());
        }
        let right = response("200 OK", &body);
        // The verdict on a response that arrives in parts, as a connection checks it.
        let mut verdict = |request: &SentRequest, reply: &[u8], part: usize| {
            let (mut kept, mut rest) = (Vec::new(), None);
            let mut verdict = Verdict::Incomplete;
            for bytes in reply.chunks(part) {
                kept.extend_from_slice(bytes);
                verdict = match rest {
                    Some(rest) => http.check_rest(rest, &kept),
                    None => http.check(request, &kept),
                };
                match verdict {
                    Verdict::Incomplete => {}
                    Verdict::Continues(after) => {
                        rest = Some(after);
                        kept.clear();
                    }
                    _ => break,
                }
            }
            verdict
        };
        assert_eq!(verdict(&request, &right, right.len()), Verdict::Right(right.len()));
        for part in [10, 1_448, 65_536] {
            assert!(matches!(verdict(&request, &right, part), Verdict::Right(_)), "parts of {part} bytes");
            assert!(matches!(verdict(&request, &right[..right.len() - 1], part), Verdict::Continues(_)));
        }
        let head = right.len() - body.len();
        for at in [head, head + 65_521, right.len() - 1] {
            let mut altered = right.clone();
            altered[at] ^= 1;
            assert_eq!(verdict(&request, &altered, 1_448), Verdict::Garbled, "byte {at}");
        }
        let missing = [&right[..head + 5], &right[head + 6..], b"x"].concat();
        assert_eq!(verdict(&request, &missing, 1_448), Verdict::Garbled);
        let short = response("200 OK", &body[1..]);
        assert_eq!(verdict(&request, &short, short.len()), Verdict::Wrong(short.len()));
        let refused = response("503 Service Unavailable", b"");
        assert_eq!(verdict(&request, &refused, 9), Verdict::Wrong(refused.len()));
        let other = SentRequest { request: Request { key: 9, write: false }, version: 0 };
        assert_eq!(verdict(&other, &right, right.len()), Verdict::Garbled, "the response to another request");
    }
}
