//! HTTP/1.1, as far as `GET` and `HEAD` (RFC 9110, RFC 9112): the body of each response is the request's target, or an object
//! of the size that a target `/NAME?bytes=N` names.
//!
//! Requests have no bodies. A request after which the start of the next one is not known is refused, and the connection is
//! closed.

use spillway_load::objects::{Rest, size_in};

use super::partition::Partition;
use super::protocol::{Outcome, Protocol};
use super::replies::Replies;

/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Maximum number of fields in a head.
const FIELDS_MAX: usize = 64;

/// The protocol. It keeps nothing between requests.
#[derive(Debug, Default)]
pub(crate) struct Http {
    /// The targets that this server has; `None`: all.
    pub(crate) partition: Option<Partition>,
}

/// Why a request is refused: the status code and its phrase.
type Refusal = &'static str;

const BAD_REQUEST: Refusal = "400 Bad Request";
const HEAD_TOO_LARGE: Refusal = "431 Request Header Fields Too Large";
const NOT_IMPLEMENTED: Refusal = "501 Not Implemented";
const BAD_VERSION: Refusal = "505 HTTP Version Not Supported";
const NOT_FOUND: Refusal = "404 Not Found";
const UNAVAILABLE: Refusal = "503 Service Unavailable";

/// What is done with a request that is complete and valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// It was read here: it is answered if this server has the target, and no other server examines it first.
    Answer,
    /// It has come from another server: it is answered if this server has the target.
    HandedAnswer,
    /// It is refused: the server that has the target cannot be reached.
    Refusal,
}

/// The body of a response.
#[derive(Clone, Copy, Debug)]
enum Body<'a> {
    Text(&'a str),
    Object(Rest),
}

impl Body<'_> {
    const NONE: Body<'static> = Body::Text("");

    fn len(self) -> usize {
        match self {
            Body::Text(text) => text.len(),
            Body::Object(object) => object.len(),
        }
    }
}

impl Protocol for Http {
    type Progress = ();

    fn execute(&mut self, input: &[u8], replies: &mut Replies, (): &mut ()) -> Outcome {
        self.execute_as(Wanted::Answer, input, replies)
    }

    fn execute_handed(&mut self, input: &[u8], replies: &mut Replies, (): &mut ()) -> Outcome {
        self.execute_as(Wanted::HandedAnswer, input, replies)
    }

    fn refuse(&mut self, input: &[u8], replies: &mut Replies) -> Outcome {
        self.execute_as(Wanted::Refusal, input, replies)
    }
}

impl Http {
    fn execute_as(&self, wanted: Wanted, input: &[u8], replies: &mut Replies) -> Outcome {
        if replies.is_full() {
            return Outcome::Full;
        }
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let parsed = request.parse(&input[..input.len().min(HEAD_BYTES_MAX)]);
        let answered = match parsed {
            Ok(httparse::Status::Partial) if input.len() < HEAD_BYTES_MAX => return Outcome::Incomplete,
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => Err(HEAD_TOO_LARGE),
            Err(httparse::Error::Version) => Err(BAD_VERSION),
            Err(_) => Err(BAD_REQUEST),
            Ok(httparse::Status::Complete(bytes)) => self.answer(wanted, (&request, bytes), replies),
        };
        answered.unwrap_or_else(|refusal| {
            // Without a body, so that the response is right for every method.
            self.push(replies, refusal, false, Body::NONE, true);
            Outcome::Close
        })
    }

    /// Answers a request with a complete head, of this number of bytes.
    fn answer(
        &self,
        wanted: Wanted,
        (request, bytes): (&httparse::Request<'_, '_>, usize),
        replies: &mut Replies,
    ) -> Result<Outcome, Refusal> {
        let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version)
        else {
            return Err(BAD_REQUEST); // complete heads have all three
        };
        let has_body = match method {
            "GET" => true,
            "HEAD" => false,
            _ => return Err(NOT_IMPLEMENTED),
        };
        let values = |name: &'static str| {
            let is_named = move |field: &&httparse::Header<'_>| field.name.eq_ignore_ascii_case(name);
            request.headers.iter().filter(is_named).map(|field| field.value.trim_ascii())
        };
        let announces_body = values("transfer-encoding").next().is_some()
            || values("content-length").any(|length| length != b"0");
        // RFC 9112, section 3.2: a request of HTTP/1.1 has one field Host.
        let has_host = values("host").count() == 1;
        if announces_body || (version == 1 && !has_host) {
            return Err(BAD_REQUEST);
        }
        let mut options = values("connection").flat_map(|value| value.split(|byte| *byte == b','));
        let stays = version == 1 && !options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"));
        let elsewhere = self.partition.as_ref().and_then(|partition| {
            let examiner = partition.examiner().filter(|_| wanted == Wanted::Answer);
            examiner.or_else(|| partition.elsewhere(target))
        });
        match (wanted, elsewhere) {
            (Wanted::Answer | Wanted::HandedAnswer, Some(server)) => return Ok(Outcome::Elsewhere(server)),
            (Wanted::Answer | Wanted::HandedAnswer, None) => {
                let (status, body) = match size_in(target) {
                    None => ("200 OK", Body::Text(target)),
                    Some(Ok(bytes)) => ("200 OK", Body::Object(Rest::of(target.as_bytes(), bytes))),
                    Some(Err(_)) => (NOT_FOUND, Body::NONE),
                };
                self.push(replies, status, stays, body, has_body);
            }
            (Wanted::Refusal, _) => self.push(replies, UNAVAILABLE, stays, Body::NONE, has_body),
        }
        Ok(if stays { Outcome::Answered(bytes) } else { Outcome::Close })
    }

    /// Appends a response. `has_body`: false for the answer to `HEAD`, which states the body's length and omits the body.
    fn push(&self, replies: &mut Replies, status: &str, stays: bool, body: Body<'_>, has_body: bool) {
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n");
        replies.push(head.as_bytes());
        if let Some(partition) = &self.partition {
            replies.push(format!("Served-By: {}\r\n", partition.name()).as_bytes());
        }
        replies.push(if stays { b"\r\n" } else { b"Connection: close\r\n\r\n" });
        match body {
            _ if !has_body => {}
            Body::Text(text) => replies.push(text.as_bytes()),
            Body::Object(object) => replies.push_object(object),
        }
    }
}

#[cfg(test)]
mod tests {
    use spillway_transport::Conn;
    use spillway_wire::switch::ServerId;

    use super::super::test_transport::TestTransport;
    use super::*;

    /// Executes all requests of an input. Returns the responses, the bytes of the requests, and the last outcome.
    fn run(input: &[u8]) -> (String, usize, Outcome) {
        let (mut replies, mut at) = (Replies::default(), 0);
        loop {
            match Http::default().execute(&input[at..], &mut replies, &mut ()) {
                Outcome::Answered(bytes) => at += bytes,
                last => return (String::from_utf8(replies.waiting().to_vec()).unwrap(), at, last),
            }
        }
    }

    fn ok(body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{body}")
    }

    /// The status code of the response to one request, which must be the last of the connection.
    fn last_status(input: &[u8]) -> String {
        let (response, _, outcome) = run(input);
        assert!(response.contains("\r\nConnection: close\r\n"), "{response}");
        assert_eq!(outcome, Outcome::Close, "{response}");
        response.split(' ').nth(1).unwrap().to_owned()
    }

    #[test]
    fn requests_in_one_input_are_answered_in_their_order() {
        let input =
            b"GET /a?b HTTP/1.1\r\nHost: x\r\n\r\n\r\nGET /c HTTP/1.1\r\nhost:y\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(run(input), (ok("/a?b") + &ok("/c"), input.len(), Outcome::Incomplete));
        let head = run(b"HEAD /abc HTTP/1.1\r\nHost: x\r\n\r\n").0;
        assert_eq!(head, ok("/abc").strip_suffix("/abc").unwrap());
    }

    #[test]
    fn objects_have_the_size_that_the_target_names_and_sizes_that_no_object_has_are_not_found() {
        let mut http = Http::default();
        let mut response = |target: &str| {
            let request = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
            let (mut replies, mut out) =
                (Replies::default(), TestTransport { room: 1 << 23, ..Default::default() });
            assert_eq!(
                http.execute(request.as_bytes(), &mut replies, &mut ()),
                Outcome::Answered(request.len())
            );
            let is_object = replies.is_full();
            assert!(replies.send(Conn { slot: 0, generation: 0 }, &mut out));
            (is_object, out.sent)
        };
        for bytes in [1, 64, 65_521, 4 << 20] {
            let target = format!("/name?bytes={bytes}");
            let (is_object, sent) = response(&target);
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {bytes}\r\n\r\n");
            let body = sent.strip_prefix(head.as_bytes()).unwrap();
            let mut object = Rest::of(target.as_bytes(), bytes);
            assert!(is_object && object.take(body) && object.is_empty(), "{bytes} bytes");
        }
        assert_eq!(response("/name?bytes=0").1, ok("").as_bytes());
        for target in ["/name?bytes=4194305", "/name?bytes=x"] {
            let (is_object, sent) = response(target);
            assert!(!is_object && sent.starts_with(b"HTTP/1.1 404 Not Found\r\n"), "{target}");
        }
        let (head, _, outcome) = run(b"HEAD /a?bytes=5 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(head.contains("Content-Length: 5\r\n") && head.ends_with("\r\n\r\n"));
        assert_eq!(outcome, Outcome::Incomplete, "no body follows that would delay the next request");
    }

    #[test]
    fn requests_for_targets_of_another_server_go_there_or_are_refused() {
        let [one, two] = [1, 2].map(ServerId);
        let mut http = Http { partition: Some(Partition::new("one", one, [one, two])) };
        let requests = (0..100).map(|number| format!("GET /{number} HTTP/1.1\r\nHost: x\r\n\r\n"));
        let (mut here, mut elsewhere) = (0, 0);
        for request in requests {
            let mut replies = Replies::default();
            match http.execute(request.as_bytes(), &mut replies, &mut ()) {
                Outcome::Answered(bytes) => {
                    assert_eq!(bytes, request.len());
                    assert!(replies.waiting().windows(14).any(|bytes| bytes == b"Served-By: one"));
                    here += 1;
                }
                Outcome::Elsewhere(server) => {
                    assert_eq!((server, replies.is_empty()), (two, true));
                    assert_eq!(
                        http.refuse(request.as_bytes(), &mut replies),
                        Outcome::Answered(request.len())
                    );
                    assert!(replies.waiting().starts_with(b"HTTP/1.1 503 Service Unavailable\r\n"));
                    elsewhere += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(here > 20 && elsewhere > 20, "{here} {elsewhere}");
    }

    #[test]
    fn a_backend_passes_requests_that_it_has_read_to_the_frontend_and_serves_those_that_come_from_there() {
        const REQUEST: &[u8] = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
        let [frontend, backend] = [1, 2].map(ServerId);
        let partition = |own| {
            let partition = Partition::new("name", own, [frontend, backend]).with_frontends(&[frontend]);
            partition.map(|partition| partition.examined_by(frontend))
        };
        let outcomes = |own| {
            let (mut http, mut replies) = (Http { partition: partition(own) }, Replies::default());
            let own = http.execute(REQUEST, &mut replies, &mut ());
            (own, http.execute_handed(REQUEST, &mut replies, &mut ()))
        };
        assert_eq!(outcomes(backend), (Outcome::Elsewhere(frontend), Outcome::Answered(REQUEST.len())));
        assert_eq!(outcomes(frontend), (Outcome::Elsewhere(backend), Outcome::Elsewhere(backend)));
    }

    #[test]
    fn requests_are_incomplete_at_every_cut() {
        let request = b"GET /a HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n";
        for length in 0..request.len() {
            assert_eq!(run(&request[..length]), (String::new(), 0, Outcome::Incomplete), "{length} bytes");
        }
        assert_eq!(run(request).0, ok("/a"));
    }

    #[test]
    fn connection_ends_when_the_client_asks_for_it_or_has_an_older_version() {
        assert_eq!(last_status(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: te, Close\r\n\r\n"), "200");
        assert_eq!(last_status(b"GET / HTTP/1.0\r\n\r\n"), "200");
    }

    #[test]
    fn bad_requests_are_refused_with_their_status() {
        for (status, request) in [
            ("400", &b"nonsense\r\n\r\n"[..]),
            ("400", b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n"),
            ("400", b"GET / HTTP/1.1\r\nHost x\r\n\r\n"),
            ("400", b"GET / HTTP/1.1\r\nHost : x\r\n\r\n"),
            ("400", b"GET / HTTP/1.1\r\n\r\n"),
            ("400", b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"),
            ("400", b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"),
            ("400", b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 9\r\n\r\n"),
            ("400", b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            ("501", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"),
            ("505", b"GET / HTTP/2.0\r\nHost: x\r\n\r\n"),
        ] {
            assert_eq!(last_status(request), status, "{}", request.escape_ascii());
        }
    }

    #[test]
    fn heads_are_bounded_in_bytes_and_in_fields() {
        let with_fields = |count| format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "a: b\r\n".repeat(count));
        assert_eq!(run(with_fields(FIELDS_MAX - 1).as_bytes()).0, ok("/"));
        assert_eq!(last_status(with_fields(FIELDS_MAX).as_bytes()), "431");
        let of_length = |length: usize| {
            let rest = "GET / HTTP/1.1\r\nHost: x\r\na: \r\n\r\n".len();
            format!("GET / HTTP/1.1\r\nHost: x\r\na: {}\r\n\r\n", "b".repeat(length - rest))
        };
        assert_eq!(run(of_length(HEAD_BYTES_MAX).as_bytes()).0, ok("/"));
        assert_eq!(last_status(of_length(HEAD_BYTES_MAX + 1).as_bytes()), "431");
        assert_eq!(run(&[b'a'; HEAD_BYTES_MAX - 1]).2, Outcome::Incomplete);
        assert_eq!(last_status(&[b'a'; HEAD_BYTES_MAX]), "431");
    }
}
