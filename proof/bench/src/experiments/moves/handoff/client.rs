//! A client on a kernel socket, which sends one request at a time and compares the whole response.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use spillway_lab::Host;

use super::target::Target;
use crate::error::Error;

/// A client that waits for longer than this has lost its connection.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest response that is read.
const RESPONSE_BYTES_MAX: usize = 4 * 1024;

/// A connection of a client.
#[derive(Debug)]
pub(super) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// The server that has the connection, by its place among the servers.
    pub(super) server: usize,
}

/// Why a client cannot go on with its connection.
#[derive(Debug)]
pub(super) enum Fault {
    /// A response differs from what its server must answer.
    Wrong(String),
    /// The connection was reset, has ended, or is silent.
    Broken(io::Error),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Wrong(response) => write!(f, "a wrong response: {response}"),
            Fault::Broken(error) => write!(f, "the connection has ended: {error}"),
        }
    }
}

impl Client {
    /// Connects to the service, which is at its original owner.
    pub(super) fn connect(host: &Host, service: SocketAddr) -> Result<Client, Error> {
        let connect = || {
            let stream = TcpStream::connect(service)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        };
        let stream = host
            .run_inside(connect)?
            .map_err(|cause: io::Error| Error::System { what: "a client of the service".into(), cause })?;
        Ok(Client { stream, buffer: Vec::with_capacity(RESPONSE_BYTES_MAX), server: 0 })
    }

    /// Sends a target's request.
    pub(super) fn send(&mut self, target: &Target) -> Result<(), Fault> {
        self.stream.write_all(&target.request).map_err(Fault::Broken)
    }

    /// Waits for the response, which must be the target's, of its server.
    pub(super) fn receive(&mut self, target: &Target) -> Result<(), Fault> {
        self.receive_until(|bytes| {
            bytes.len() >= target.response.len() || !target.response.starts_with(bytes)
        })?;
        if self.buffer != target.response {
            return Err(Fault::Wrong(self.buffer.escape_ascii().to_string()));
        }
        self.server = target.server;
        Ok(())
    }

    /// Waits for a response of which only the form is known. `is_complete` tells whether all of it has arrived.
    pub(super) fn receive_until(&mut self, is_complete: impl Fn(&[u8]) -> bool) -> Result<&[u8], Fault> {
        self.buffer.clear();
        let mut part = [0; RESPONSE_BYTES_MAX];
        while self.buffer.is_empty() || !is_complete(&self.buffer) {
            let length = self.stream.read(&mut part).map_err(Fault::Broken)?;
            if length == 0 {
                return Err(Fault::Broken(io::ErrorKind::UnexpectedEof.into()));
            }
            self.buffer.extend_from_slice(&part[..length]);
            if self.buffer.len() > RESPONSE_BYTES_MAX {
                return Err(Fault::Wrong(format!("{} bytes", self.buffer.len())));
            }
        }
        Ok(&self.buffer)
    }

    /// Sends a request whose response is not known, after which the server is not known either.
    pub(super) fn send_bytes(&mut self, request: &[u8]) -> Result<(), Fault> {
        self.stream.write_all(request).map_err(Fault::Broken)
    }
}
