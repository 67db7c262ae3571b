//! The socket of a session's present carrier.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::socket;

/// A TCP socket that is connecting or connected.
#[derive(Debug)]
pub(super) struct CarrierSocket {
    fd: OwnedFd,
    is_connected: bool,
    /// Whether the session's epoll set watches for writability; `None`: the socket is not in the set yet.
    watches_writing: Option<bool>,
}

impl CarrierSocket {
    pub(super) fn start(target: SocketAddr, local_port: Option<u16>) -> io::Result<CarrierSocket> {
        let fd = socket::start_from(target, local_port)?;
        Ok(CarrierSocket { fd, is_connected: false, watches_writing: None })
    }

    pub(super) fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// The socket's local address, once, when it has connected.
    pub(super) fn poll_connected(&mut self) -> io::Result<Option<SocketAddr>> {
        if self.is_connected || !socket::is_connected(&self.fd)? {
            return Ok(None);
        }
        self.is_connected = true;
        socket::local_address(&self.fd).map(Some)
    }

    /// Receives available bytes. An empty result is the end of the stream.
    pub(super) fn receive<'a>(&self, space: &'a mut [MaybeUninit<u8>]) -> io::Result<&'a mut [u8]> {
        socket::receive_into(&self.fd, space)
    }

    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        socket::send(&self.fd, bytes)
    }

    /// Watches the socket in this epoll set for reading, and for writing if `has_unsent` or not yet connected.
    pub(super) fn watch(&mut self, poller: &OwnedFd, has_unsent: bool) -> io::Result<()> {
        let wants_writable = has_unsent || !self.is_connected;
        if self.watches_writing == Some(wants_writable) {
            return Ok(());
        }
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, wants_writable);
        let (fd, data) = (self.fd.as_fd(), EventData::new_u64(0));
        match self.watches_writing.replace(wants_writable) {
            None => epoll::add(poller, fd, data, flags)?,
            Some(_) => epoll::modify(poller, fd, data, flags)?,
        }
        Ok(())
    }
}
