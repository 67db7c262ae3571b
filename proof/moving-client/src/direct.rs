//! The direct carrier: a TCP connection to the server's ordinary port.

use std::io;
use std::net::SocketAddr;

use crate::network::{Network, Stream, would_block};
use crate::watch::Interest;

#[derive(Debug)]
pub(crate) struct Direct<S> {
    pub(crate) stream: S,
    pub(crate) server: SocketAddr,
    pub(crate) connected: bool,
    last_send_was_partial: bool,
    server_finished: bool,
    outgoing_finished: bool,
    /// The server has sent bytes before the connection was in use; the stream holds the bytes.
    has_early_bytes: bool,
    pub(crate) watched: Option<Interest>,
}

impl<S: Stream> Direct<S> {
    pub(crate) fn start(network: &impl Network<Stream = S>, server: SocketAddr) -> io::Result<Direct<S>> {
        Ok(Direct {
            stream: network.connect(server)?,
            server,
            connected: false,
            last_send_was_partial: false,
            server_finished: false,
            outgoing_finished: false,
            has_early_bytes: false,
            watched: None,
        })
    }

    /// Continues to connect. Returns whether the TCP connection is established.
    pub(crate) fn advance(&mut self) -> io::Result<bool> {
        if !self.connected {
            self.connected = self.stream.is_connected()?;
        }
        Ok(self.connected)
    }

    pub(crate) fn interest(&self) -> Interest {
        Interest {
            readable: self.connected && !self.server_finished && !self.has_early_bytes,
            writable: !self.connected || self.last_send_was_partial,
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let outcome = self.stream.send(bytes);
        match &outcome {
            Ok(sent) => self.last_send_was_partial = *sent < bytes.len(),
            Err(error) => self.last_send_was_partial = would_block(error),
        }
        outcome
    }

    /// Ends the outgoing stream.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.outgoing_finished = true;
        self.stream.finish()
    }

    /// Whether [`finish`](Self::finish) was called.
    pub(crate) fn has_finished(&self) -> bool {
        self.outgoing_finished
    }

    /// Handles writability. Returns whether a sender waits for room.
    pub(crate) fn handle_writable(&mut self) -> bool {
        std::mem::take(&mut self.last_send_was_partial)
    }

    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let received = self.stream.receive(buffer)?;
        self.server_finished |= received == 0 && !buffer.is_empty();
        Ok(received)
    }

    pub(crate) fn has_unread(&self) -> bool {
        self.stream.peek().is_ok_and(|bytes| bytes > 0)
    }

    /// Checks that nothing has arrived on an idle connection: no bytes, end or error.
    pub(crate) fn check_idle(&self) -> io::Result<()> {
        match self.stream.peek() {
            Ok(0) => {
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server closed the connection"))
            }
            Ok(_) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a reply arrived after the move: receive all expected replies before a move",
            )),
            Err(error) if would_block(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Checks a prepared connection. Early bytes of the server are allowed.
    pub(crate) fn check_prepared(&mut self) -> io::Result<()> {
        match self.check_idle() {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.has_early_bytes = true;
                Ok(())
            }
            outcome => outcome,
        }
    }

    pub(crate) fn set_idle(&mut self) {
        self.last_send_was_partial = false;
    }

    pub(crate) fn set_in_use(&mut self) {
        self.has_early_bytes = false;
    }

    /// Whether the connection is established and the end of the server's stream has not been received.
    pub(crate) fn is_usable(&self) -> bool {
        self.connected && !self.server_finished
    }
}
