//! The direct carrier: plain TCP.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use crate::socket;
use crate::watch::Interest;

/// A TCP connection to the server's ordinary port.
#[derive(Debug)]
pub(crate) struct Direct {
    pub(crate) socket: OwnedFd,
    pub(crate) server: SocketAddr,
    pub(crate) connected: bool,
    /// The last `send` took fewer bytes than it was given.
    wants_room: bool,
    /// The server ended its stream.
    server_finished: bool,
    /// The server sent bytes before the connection was in use; the kernel holds them.
    has_early_bytes: bool,
    pub(crate) watched: Option<Interest>,
}

impl Direct {
    pub(crate) fn start(server: SocketAddr) -> io::Result<Direct> {
        let socket = socket::start(server)?;
        Ok(Direct {
            socket,
            server,
            connected: false,
            wants_room: false,
            server_finished: false,
            has_early_bytes: false,
            watched: None,
        })
    }

    /// Continues to connect. Returns whether TCP is connected.
    pub(crate) fn advance(&mut self) -> io::Result<bool> {
        if !self.connected {
            self.connected = socket::is_connected(&self.socket)?;
        }
        Ok(self.connected)
    }

    pub(crate) fn interest(&self) -> Interest {
        Interest {
            readable: self.connected && !self.server_finished && !self.has_early_bytes,
            writable: !self.connected || self.wants_room,
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let outcome = socket::send(&self.socket, bytes);
        match &outcome {
            Ok(sent) => self.wants_room = *sent < bytes.len(),
            Err(error) => self.wants_room = socket::is_later(error),
        }
        outcome
    }

    /// Handles writability. Returns whether a sender waits for room.
    pub(crate) fn writable(&mut self) -> bool {
        std::mem::take(&mut self.wants_room)
    }

    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let received = socket::receive(&self.socket, buffer)?;
        self.server_finished |= received == 0 && !buffer.is_empty();
        Ok(received)
    }

    /// Whether received bytes wait in the kernel.
    pub(crate) fn has_unread(&self) -> bool {
        socket::peek(&self.socket).is_ok_and(|bytes| bytes > 0)
    }

    /// Checks that nothing has arrived on an idle connection: no bytes, end or error.
    pub(crate) fn check_idle(&self) -> io::Result<()> {
        match socket::peek(&self.socket) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server closed the connection")),
            Ok(_) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a reply arrived after the move: receive all expected replies before a move",
            )),
            Err(error) if socket::is_later(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Checks a connection that is prepared and not in use. Bytes of the server may arrive early.
    pub(crate) fn check_prepared(&mut self) -> io::Result<()> {
        match self.check_idle() {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.has_early_bytes = true;
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Marks the connection as idle.
    pub(crate) fn set_idle(&mut self) {
        self.wants_room = false;
    }

    /// Marks the connection as in use.
    pub(crate) fn set_in_use(&mut self) {
        self.has_early_bytes = false;
    }

    /// Whether both directions are open, as far as known.
    pub(crate) fn is_usable(&self) -> bool {
        self.connected && !self.server_finished
    }
}
