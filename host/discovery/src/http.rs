//! As much of an HTTP/1.1 client (RFC 9112) as etcd's JSON gateway needs: one POST for each connection, and answers
//! that come in pieces for as long as somebody listens.

use std::time::Instant;

use crate::body::{Body, Malformed};
use crate::stop::Stop;
use crate::stream::{Failed, Stream};

/// What an answer may have without its lines having been taken. A list of the most helpers takes less.
const BODY_BYTES_MAX: usize = 8 << 20;
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
const READ_BYTES: usize = 16 << 10;

/// An answer whose head has come.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    stream: Stream<'a>,
    /// 200 and the like.
    pub(crate) status: u16,
    body: Body,
    /// As it came, not decoded yet.
    raw: Vec<u8>,
    /// Decoded, not taken yet.
    decoded: Vec<u8>,
    /// How much of it has no end of line.
    searched: usize,
}

/// What comes next of an answer in lines.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Without its end.
    Text(Vec<u8>),
    /// None until the deadline.
    NotYet,
    /// No more.
    End,
}

/// Sends a JSON text, and waits for the answer's head.
pub(crate) fn post<'a>(
    endpoint: &str,
    path: &str,
    json: &str,
    stop: &'a Stop,
    deadline: Instant,
) -> Result<Answer<'a>, Failed> {
    let mut stream = Stream::connect(endpoint, stop, deadline)?;
    let length = json.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {endpoint}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{json}"
    );
    stream.write_all(request.as_bytes(), deadline)?;
    let mut raw = Vec::new();
    loop {
        if !read_more(&mut stream, &mut raw, deadline)?.ok_or_else(late)? {
            return Err(Failed::because("closed the connection without an answer"));
        }
        if let Some((length, status, body)) = head(&raw)? {
            raw.drain(..length);
            return Ok(Answer { stream, status, body, raw, decoded: Vec::new(), searched: 0 });
        }
        if raw.len() > HEAD_BYTES_MAX {
            return Err(malformed());
        }
    }
}

impl Answer<'_> {
    /// All of it, to its end.
    pub(crate) fn whole(mut self, deadline: Instant) -> Result<Vec<u8>, Failed> {
        while self.more(deadline)?.ok_or_else(late)? {}
        Ok(self.decoded)
    }

    /// The next line that is not empty.
    pub(crate) fn line(&mut self, deadline: Instant) -> Result<Line, Failed> {
        loop {
            let rest = &self.decoded[self.searched..];
            if let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.decoded.drain(..=self.searched + at).collect();
                line.pop();
                self.searched = 0;
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return Ok(Line::Text(line));
            }
            self.searched = self.decoded.len();
            match self.more(deadline)? {
                None => return Ok(Line::NotYet),
                Some(false) => return Ok(Line::End),
                Some(true) => {}
            }
        }
    }

    /// Whether more of it has come: `None` until the deadline, false: that was all.
    fn more(&mut self, deadline: Instant) -> Result<Option<bool>, Failed> {
        loop {
            let before = self.decoded.len();
            self.body.decode(&mut self.raw, &mut self.decoded).map_err(|Malformed| malformed())?;
            if self.decoded.len() > BODY_BYTES_MAX {
                return Err(Failed::because(format!("answers with more than {BODY_BYTES_MAX} bytes")));
            }
            if self.decoded.len() > before {
                return Ok(Some(true));
            }
            if self.body.is_complete() {
                return Ok(Some(false));
            }
            match read_more(&mut self.stream, &mut self.raw, deadline)? {
                None => return Ok(None),
                Some(true) => {}
                Some(false) if self.body.may_end() => return Ok(Some(false)),
                Some(false) => {
                    return Err(Failed::because("closed the connection in the midst of an answer"));
                }
            }
        }
    }
}

fn late() -> Failed {
    Failed::because("does not answer in time")
}

fn malformed() -> Failed {
    Failed::because("does not answer with HTTP: is it etcd's client port?")
}

/// `None`: nothing until the deadline. False: the end.
fn read_more(stream: &mut Stream<'_>, raw: &mut Vec<u8>, deadline: Instant) -> Result<Option<bool>, Failed> {
    let mut buffer = [0; READ_BYTES];
    let read = stream.read(&mut buffer, deadline)?;
    Ok(read.map(|read| {
        raw.extend_from_slice(&buffer[..read]);
        read > 0
    }))
}

/// The length of a whole head, its status, and how the body comes.
fn head(raw: &[u8]) -> Result<Option<(usize, u16, Body)>, Failed> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = response.parse(raw).map_err(|_| malformed())? else {
        return Ok(None);
    };
    let header = |name: &str| {
        let found = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.map(|header| header.value)
    };
    let body = match header("transfer-encoding") {
        Some(coding) if coding.eq_ignore_ascii_case(b"chunked") => Body::chunked(),
        Some(_) => return Err(malformed()),
        None => match header("content-length") {
            Some(text) => {
                let length = str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok());
                Body::of_length(length.ok_or_else(malformed)?)
            }
            None => Body::until_end(),
        },
    };
    Ok(Some((length, response.code.ok_or_else(malformed)?, body)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    /// What a server that answers with these pieces makes of a client's doing.
    fn with_answer<T>(pieces: &[&str], ask: impl FnOnce(Result<Answer<'_>, Failed>, Instant) -> T) -> T {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let stop = Stop::new().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"{}") {
                    let mut buffer = [0; 100];
                    let read = stream.read(&mut buffer).unwrap();
                    request.extend_from_slice(&buffer[..read]);
                }
                assert!(request.starts_with(b"POST /v3/x HTTP/1.1\r\n"));
                pieces.iter().for_each(|piece| drop(stream.write_all(piece.as_bytes())));
            });
            ask(post(&endpoint, "/v3/x", "{}", &stop, deadline), deadline)
        })
    }

    fn whole(pieces: &[&str]) -> Result<(u16, String), String> {
        with_answer(pieces, |answer, deadline| {
            let answer = answer.map_err(|error| error.to_string())?;
            let status = answer.status;
            let bytes = answer.whole(deadline).map_err(|error| error.to_string())?;
            Ok((status, String::from_utf8(bytes).unwrap()))
        })
    }

    #[test]
    fn answers_come_in_three_ways() {
        let ok = |text: &str| Ok((200, text.to_owned()));
        let head = "HTTP/1.1 200 OK\r\n";
        assert_eq!(whole(&[head, "Content-Length: 5\r\n\r\nhello, and more"]), ok("hello"));
        assert_eq!(whole(&[head, "\r\nhel", "lo"]), ok("hello"));
        let chunked = "transfer-encoding: Chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nTrailer: x\r\n\r\n";
        assert_eq!(whole(&[head, chunked]), ok("hello"));
        let refused = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(whole(&[refused]), Ok((404, String::new())));
    }

    #[test]
    fn what_is_no_answer_says_so() {
        let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n", "x".repeat(HEAD_BYTES_MAX));
        for (pieces, why) in [
            (vec![""], "without an answer"),
            (vec!["HTTP/1.1 200 OK\r\nContent-Le"], "without an answer"),
            (vec!["SSH-2.0-OpenSSH\r\n\r\n"], "does not answer with HTTP"),
            (vec!["HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"], "does not answer with HTTP"),
            (vec!["HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"], "does not answer with HTTP"),
            (
                vec!["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"],
                "does not answer with HTTP",
            ),
            (vec!["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell"], "in the midst"),
            (vec!["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhell"], "in the midst"),
            (vec![&long], "does not answer with HTTP"),
        ] {
            let error = whole(&pieces).unwrap_err();
            assert!(error.contains(why), "{pieces:?}: {error}");
        }
        let piece = "x".repeat(1 << 20);
        let mut pieces = vec!["HTTP/1.1 200 OK\r\n\r\n"];
        pieces.extend(std::iter::repeat_n(piece.as_str(), 9));
        assert!(whole(&pieces).unwrap_err().contains("more than"));
    }

    #[test]
    fn lines_come_one_by_one() {
        let pieces = ["HTTP/1.1 200 OK\r\n\r\none\nt", "wo\n\n", "three\nrest"];
        with_answer(&pieces, |answer, deadline| {
            let mut answer = answer.unwrap();
            for expected in ["one", "two", "three"] {
                assert_eq!(answer.line(deadline), Ok(Line::Text(expected.into())));
            }
            assert_eq!(answer.line(deadline), Ok(Line::End));
        });
    }
}
