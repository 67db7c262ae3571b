//! Fills the key space before a run: sets every key, then reads all values back and compares them.

use std::io::{BufReader, Read, Write};
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

/// Sets the first `keys` keys of `space` in version 0 (if `set`), then reads their values and compares them.
pub fn fill<D: Dialect>(server: SocketAddr, space: &Space, keys: u32, set: bool) -> Result<(), Error> {
    let stream = TcpStream::connect_timeout(&server, TIMEOUT)
        .and_then(|stream| {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            Ok(stream)
        })
        .map_err(|e| Error::server(server, format!("cannot connect to fill the key space: {e}")))?;
    let mut filler = Filler { server, input: BufReader::with_capacity(1 << 16, &stream), output: &stream };
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
            let fill_error = |e| {
                let hint = "check the server's address and protocol, and that its memory holds the key space";
                Error::server(self.server, format!("while filling the key space ({operation}): {e}; {hint}"))
            };
            self.output.write_all(&requests).map_err(fill_error)?;
            read_until_difference(&mut self.input, &expected, &mut got).map_err(fill_error)?;
            if let Some(offset) = (0..got.len()).find(|&offset| got[offset] != expected[offset]) {
                let excerpt_at_difference =
                    |bytes: &[u8]| excerpt(&bytes[offset.saturating_sub(40).min(bytes.len())..]);
                let mut last_key = Vec::new();
                space.push_key(key - 1, &mut last_key);
                return Err(Error::server(
                    self.server,
                    format!(
                        "wrong reply to a {operation} at or before key {}: expected {}, got {}; is the server's \
                         memory large enough for {keys} keys, and do these keys hold values of another run?",
                        last_key.escape_ascii(),
                        excerpt_at_difference(&expected),
                        excerpt_at_difference(&got)
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// Reads until `got` is full or differs from `expected`: after a wrong reply the server may send no further bytes.
fn read_until_difference(input: &mut impl Read, expected: &[u8], got: &mut [u8]) -> std::io::Result<()> {
    let mut received = 0;
    while received < got.len() {
        let count = match input.read(&mut got[received..]) {
            // SIGSTOP and SIGCONT interrupt a read that has a timeout.
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if got[received..received + count] != expected[received..received + count] {
            return Ok(());
        }
        received += count;
    }
    Ok(())
}
