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
    /// `send` took less than it was given.
    wants_room: bool,
    /// The server sends no more.
    ended: bool,
    /// Bytes wait here until the connection is in use.
    early: bool,
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
            ended: false,
            early: false,
            watched: None,
        })
    }

    /// Whether it is connected by now.
    pub(crate) fn advance(&mut self) -> io::Result<bool> {
        if !self.connected {
            self.connected = socket::is_connected(&self.socket)?;
        }
        Ok(self.connected)
    }

    pub(crate) fn interest(&self) -> Interest {
        Interest {
            readable: self.connected && !self.ended && !self.early,
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

    /// Whether somebody waited for room.
    pub(crate) fn writable(&mut self) -> bool {
        std::mem::take(&mut self.wants_room)
    }

    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let received = socket::receive(&self.socket, buffer)?;
        self.ended |= received == 0 && !buffer.is_empty();
        Ok(received)
    }

    /// Whether bytes have arrived that nobody has received.
    pub(crate) fn has_unread(&self) -> bool {
        socket::peek(&self.socket).is_ok_and(|bytes| bytes > 0)
    }

    /// While idle nothing may arrive: neither an end, nor an error, nor bytes.
    pub(crate) fn check_idle(&self) -> io::Result<()> {
        match socket::peek(&self.socket) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server closed it")),
            Ok(_) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a reply arrived on it after the move: not all replies had been awaited",
            )),
            Err(error) if socket::is_later(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Prepared and not yet in use: what the server says already waits in the kernel.
    pub(crate) fn check_prepared(&mut self) -> io::Result<()> {
        match self.check_idle() {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.early = true;
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// It is out of use.
    pub(crate) fn rest(&mut self) {
        self.wants_room = false;
    }

    /// It is in use.
    pub(crate) fn use_again(&mut self) {
        self.early = false;
    }

    /// Whether it can still carry both directions, as far as was seen.
    pub(crate) fn is_usable(&self) -> bool {
        self.connected && !self.ended
    }
}
