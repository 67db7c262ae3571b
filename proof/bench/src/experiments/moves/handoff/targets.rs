//! Targets of requests, by the server that serves them.

use super::client::{Client, Fault};
use super::target::Target;
use crate::error::Error;
use crate::experiments::moves::site::NAMES;

/// Targets of each server: successive requests differ.
const EACH: usize = 16;
/// Targets that are tried. Each server has a third of them, by their hashes.
const TRIED_MAX: usize = 1_000;
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// [`EACH`] targets of each server.
#[derive(Clone, Debug)]
pub(super) struct Targets([Vec<Target>; NAMES.len()]);

impl Targets {
    /// Finds them: requests targets until each server has served enough of them. The responses say which server it was.
    pub(super) fn find(client: &mut Client) -> Result<Targets, Error> {
        let mut targets = Targets(Default::default());
        for number in 0..TRIED_MAX {
            if targets.0.iter().all(|targets| targets.len() == EACH) {
                return Ok(targets);
            }
            let failed = |fault: Fault| {
                Error::process(format!("request {number} of a target has failed: {fault}"), "")
            };
            let path = path(number);
            client.send_bytes(&request(&path)).map_err(failed)?;
            let response = client.receive_until(|bytes| is_complete(bytes, &path)).map_err(failed)?;
            let server = (0..NAMES.len()).find(|server| response == self::response(&path, NAMES[*server]));
            let Some(server) = server else {
                return Err(failed(Fault::Wrong(response.escape_ascii().to_string())));
            };
            let target = Target { server, request: request(&path), response: response.to_vec() };
            client.server = server;
            if targets.0[server].len() < EACH {
                targets.0[server].push(target);
            }
        }
        Err(Error::process(format!("a server has fewer than {EACH} of {TRIED_MAX} targets"), ""))
    }

    /// A target of a server. Successive numbers have different targets.
    pub(super) fn of(&self, server: usize, number: usize) -> &Target {
        &self.0[server][number % EACH]
    }
}

fn path(number: usize) -> String {
    format!("/bucket/object-{number:04}")
}

/// A request as small clients send it.
pub(super) fn request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: service\r\nAccept: */*\r\n\r\n").into_bytes()
}

/// What the server of this name answers: the body is the path.
fn response(path: &str, name: &str) -> Vec<u8> {
    let length = path.len();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: ";
    format!("{head}{length}\r\nServed-By: {name}\r\n\r\n{path}").into_bytes()
}

/// Whether a response with this body has arrived, or one with another body, of which the head shows it.
fn is_complete(bytes: &[u8], body: &str) -> bool {
    let end = bytes.windows(END_OF_HEAD.len()).position(|bytes| bytes == END_OF_HEAD);
    end.is_some_and(|end| {
        let is_refused = !bytes.starts_with(b"HTTP/1.1 200 ");
        is_refused || bytes.len() >= end + END_OF_HEAD.len() + body.len()
    })
}

/// The path of a request that is parsed without a server.
pub(super) fn example() -> Vec<u8> {
    request(&path(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_complete_with_the_last_byte_of_the_body() {
        let path = path(7);
        let whole = response(&path, "b");
        for length in 0..whole.len() {
            assert!(!is_complete(&whole[..length], &path), "{length} bytes");
        }
        assert!(is_complete(&whole, &path));
        assert!(is_complete(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", &path));
    }
}
