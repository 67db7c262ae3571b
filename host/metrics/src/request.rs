//! Parsing of an HTTP request's head, as far as a read-only server needs it (RFC 9112).

use std::str;

/// Maximal length of request line and headers, in bytes.
pub const REQUEST_BYTES_MAX: usize = 8 * 1024;
const HEADERS_MAX: usize = 64;

/// A parsed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Path with its leading slash, undecoded, without the query.
    pub path: String,
    /// The method is HEAD: the answer has no body.
    pub head_only: bool,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// Not an HTTP request.
    Malformed,
    /// The head is longer than [`REQUEST_BYTES_MAX`], or has too many headers.
    TooLong,
    /// A method other than GET and HEAD.
    Method,
    /// The request was not complete in time.
    TimedOut,
}

impl RequestError {
    /// Code and reason phrase of the status line.
    pub fn status(self) -> (u16, &'static str) {
        match self {
            RequestError::Malformed => (400, "Bad Request"),
            RequestError::TooLong => (431, "Request Header Fields Too Large"),
            RequestError::Method => (405, "Method Not Allowed"),
            RequestError::TimedOut => (408, "Request Timeout"),
        }
    }
}

impl Request {
    /// Parses a request's head. Returns `None` if it is incomplete and shorter than [`REQUEST_BYTES_MAX`].
    pub fn parse(bytes: &[u8]) -> Result<Option<Request>, RequestError> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let status = request.parse(bytes).map_err(|error| match error {
            httparse::Error::TooManyHeaders => RequestError::TooLong,
            _ => RequestError::Malformed,
        })?;
        if status.is_partial() {
            return if bytes.len() < REQUEST_BYTES_MAX { Ok(None) } else { Err(RequestError::TooLong) };
        }
        let head_only = match request.method {
            Some("GET") => false,
            Some("HEAD") => true,
            _ => return Err(RequestError::Method),
        };
        let target = request.path.ok_or(RequestError::Malformed)?;
        let path = path_of(target).ok_or(RequestError::Malformed)?;
        Ok(Some(Request { path: path.to_owned(), head_only }))
    }
}

/// The path of a target in origin form, or in absolute form, which servers must accept too (RFC 9112 §3.2.2).
fn path_of(target: &str) -> Option<&str> {
    let path = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |slash| &rest[slash..]),
        None => target,
    };
    let end = path.find(['?', '#']).unwrap_or(path.len());
    Some(&path[..end]).filter(|path| path.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn valid_requests_are_parsed_and_truncated_ones_are_incomplete() {
        for (text, path, head_only) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "/", false),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", "/metrics", false),
            ("HEAD /health HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n", "/health", true),
            ("GET http://127.0.0.1:9411/status HTTP/1.1\r\nHost: a\r\n\r\n", "/status", false),
            ("GET http://127.0.0.1:9411 HTTP/1.1\r\nHost: a\r\n\r\n", "/", false),
        ] {
            let expected = Request { path: path.into(), head_only };
            assert_eq!(Request::parse(text.as_bytes()), Ok(Some(expected)), "{text:?}");
            for length in 0..text.len() {
                assert_eq!(Request::parse(&text.as_bytes()[..length]), Ok(None), "{:?}", &text[..length]);
            }
        }
    }

    #[test]
    fn invalid_requests_are_refused_with_the_reason() {
        let too_many_headers = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX + 1));
        let too_long = format!("GET /{} ", "x".repeat(REQUEST_BYTES_MAX));
        for (text, error) in [
            ("POST / HTTP/1.1\r\n\r\n", RequestError::Method),
            ("DELETE /metrics HTTP/1.1\r\n\r\n", RequestError::Method),
            ("OPTIONS * HTTP/1.1\r\n\r\n", RequestError::Method),
            ("GET metrics HTTP/1.1\r\n\r\n", RequestError::Malformed),
            ("GET / HTTP/3.0\r\n\r\n", RequestError::Malformed),
            ("\x16\x03\x01\x02", RequestError::Malformed),
            ("GET / HTTP/1.1\r\nno header\r\n\r\n", RequestError::Malformed),
            (&too_many_headers, RequestError::TooLong),
            (&too_long, RequestError::TooLong),
        ] {
            assert_eq!(Request::parse(text.as_bytes()), Err(error), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn parse_of_arbitrary_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Request::parse(&bytes);
            let _ = Request::parse(&[b"GET /", bytes.as_slice()].concat());
            let _ = Request::parse(&[b"GET / HTTP/1.1\r\n", bytes.as_slice()].concat());
        }

        #[test]
        fn endless_request_is_an_error(byte in any::<u8>()) {
            let bytes = [b"GET / HTTP/1.1\r\nA: ".as_slice(), &[byte; REQUEST_BYTES_MAX]].concat();
            prop_assert!(!matches!(Request::parse(&bytes), Ok(None)));
        }
    }
}
