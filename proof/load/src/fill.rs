//! Fills the key space before a run: sets every key, then reads all values back and compares them.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::error::Error;
use crate::protocol::excerpt;
use crate::protocol::store::{Dialect, Space};

/// Limit of pipelined bytes of requests or of replies. The socket buffers of both ends hold more, so that the ends
/// cannot deadlock by both waiting to send.
const PIPELINED_BYTES_MAX: usize = 32 * 1024;
/// Timeout of connects, reads and writes, long enough for a small, busy server.
const TIMEOUT: Duration = Duration::from_secs(30);

/// If `set`, writes version 0 of the values of the first `keys` keys of `space`. Then reads the values and compares
/// them with version 0.
pub fn fill<D: Dialect>(server: SocketAddr, space: &Space, keys: u32, set: bool) -> Result<(), Error> {
    fill_within::<D>(server, space, keys, set, TIMEOUT)
}

fn fill_within<D: Dialect>(
    server: SocketAddr,
    space: &Space,
    keys: u32,
    set: bool,
    timeout: Duration,
) -> Result<(), Error> {
    let stream = TcpStream::connect_timeout(&server, timeout)
        .map_err(|e| Error::server(server, format!("cannot connect to fill the key space: {e}")))?;
    fill_over::<D>(&stream, (server, timeout), space, keys, set)
}

/// As [`fill`], over a connection to `server`. A read or a write may take `timeout`.
pub fn fill_over<D: Dialect>(
    stream: &TcpStream,
    (server, timeout): (SocketAddr, Duration),
    space: &Space,
    keys: u32,
    set: bool,
) -> Result<(), Error> {
    stream
        .set_nodelay(true)
        .and_then(|()| stream.set_read_timeout(Some(timeout)))
        .and_then(|()| stream.set_write_timeout(Some(timeout)))
        .map_err(|e| Error::server(server, format!("cannot prepare to fill the key space: {e}")))?;
    let input = BufReader::with_capacity(1 << 16, stream);
    let mut filler = Filler { server, timeout, input, output: stream };
    if set {
        filler.exchange(space, keys, "set", |key, request, reply| {
            D::push_set(space, key, 0, request);
            reply.extend_from_slice(D::STORED);
        })?;
    }
    filler.exchange(space, keys, "get", |key, request, reply| {
        D::push_get(space, key, request);
        space.push_reply::<D>(key, 0, reply);
    })
}

struct Filler<'a> {
    server: SocketAddr,
    timeout: Duration,
    input: BufReader<&'a TcpStream>,
    output: &'a TcpStream,
}

impl Filler<'_> {
    /// Sends a request for every key, several at a time, and compares all replies.
    fn exchange(
        &mut self,
        space: &Space,
        keys: u32,
        operation: &str,
        mut push: impl FnMut(u32, &mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<(), Error> {
        let (mut requests, mut expected, mut got) = (Vec::new(), Vec::new(), Vec::new());
        let mut key = 0;
        while key < keys {
            requests.clear();
            expected.clear();
            while key < keys && requests.len().max(expected.len()) < PIPELINED_BYTES_MAX {
                push(key, &mut requests, &mut expected);
                key += 1;
            }
            got.clear();
            got.resize(expected.len(), 0);
            let (server, timeout) = (self.server, self.timeout);
            let fill_error = |cause: String| {
                let hint = "check the server's address and protocol, and that its memory holds the key space";
                Error::server(server, format!("while filling the key space ({operation}): {cause}; {hint}"))
            };
            self.output.write_all(&requests).map_err(|error| match error.kind() {
                // The kernel reports an expired timeout as EAGAIN.
                ErrorKind::WouldBlock => fill_error(format!("the server read no requests for {timeout:?}")),
                _ => fill_error(error.to_string()),
            })?;
            let received = read_until_difference(&mut self.input, &expected, &mut got).map_err(|error| {
                match error.kind() {
                    ErrorKind::WouldBlock => fill_error(format!("no reply within {timeout:?}")),
                    ErrorKind::UnexpectedEof => fill_error("the server closed the connection".into()),
                    _ => fill_error(error.to_string()),
                }
            })?;
            let got = &got[..received];
            if let Some(offset) = (0..received).find(|&offset| got[offset] != expected[offset]) {
                let excerpt_at_difference =
                    |bytes: &[u8]| excerpt(&bytes[offset.saturating_sub(40).min(bytes.len())..]);
                let mut last_key = Vec::new();
                space.push_key(key - 1, &mut last_key);
                return Err(Error::server(
                    self.server,
                    format!(
                        "wrong reply to a {operation} at or before key {}: expected {}, got {}; check that the \
                         server's memory holds {keys} keys, and that no other run has written these keys",
                        last_key.escape_ascii(),
                        excerpt_at_difference(&expected),
                        excerpt_at_difference(got)
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// Reads until `got` is full or differs from `expected`: after a wrong reply the server may send no further bytes.
/// Returns the number of bytes received.
fn read_until_difference(input: &mut impl Read, expected: &[u8], got: &mut [u8]) -> io::Result<usize> {
    let mut received = 0;
    while received < got.len() {
        let count = match input.read(&mut got[received..]) {
            // SIGSTOP and SIGCONT interrupt a read that has a timeout.
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        };
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let new = received..received + count;
        received += count;
        if got[new.clone()] != expected[new] {
            break;
        }
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::protocol::memcached::Text;

    /// The error of a fill whose gets a server answers with `reply`; then the server waits for `wait`.
    fn error_after(reply: &'static [u8], wait: Duration) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 1 << 16]).unwrap() > 0);
            stream.write_all(reply).unwrap();
            thread::sleep(wait);
        });
        let space = Space { seed: 1, key_size: 8, value_size: 64 };
        let error = fill_within::<Text>(address, &space, 1, false, Duration::from_millis(100)).unwrap_err();
        server.join().unwrap();
        error.to_string()
    }

    #[test]
    fn the_error_of_a_short_reply_has_only_the_bytes_of_the_server() {
        let error = error_after(b"END\r\n", Duration::ZERO);
        assert!(error.contains(r#"got "END\r\n" (5 bytes);"#), "{error}");
    }

    #[test]
    fn a_silent_server_is_named_and_not_an_error_number() {
        let error = error_after(b"", Duration::from_millis(300));
        assert!(error.contains("no reply within 100ms") && !error.contains("os error"), "{error}");
        let error = error_after(b"VALUE", Duration::ZERO);
        assert!(error.contains("the server closed the connection"), "{error}");
    }
}
