//! Messages to and from the switch and other servers, over one UDP socket of the kernel.
//!
//! These datagrams use a socket of the kernel, not the stack: the kernel has the routes, the neighbours and the firewall rules for
//! them, and a move waits for the device anyway, so that a state never overtakes the connection's last frame.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use spillway_handoff::Transmit;
use spillway_wire::switch::ServerId;

use crate::error::EngineError;
use crate::settings::{MoveSettings, PeerServer};

/// More than a UDP datagram can have: its length field has 16 bits.
const BUFFER_BYTES: usize = 65_536;
/// Receive buffer of the socket, in bytes: parts of several connections' states arrive at once.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// The socket, and the addresses of the switch and of the other servers.
#[derive(Debug)]
pub(crate) struct Datagrams {
    socket: UdpSocket,
    switch: SocketAddr,
    peers: BTreeMap<ServerId, SocketAddr>,
    buffer: Box<[u8]>,
    /// Datagrams that the kernel did not accept. The protocol sends them again.
    pub(crate) unsent: u64,
}

impl Datagrams {
    /// Binds the socket in the calling thread's network namespace.
    pub(crate) fn open(moves: &MoveSettings, own: &PeerServer) -> Result<Datagrams, EngineError> {
        let error = |error| EngineError::Datagrams(own.address, error);
        let socket = UdpSocket::bind(own.address).map_err(error)?;
        socket.set_nonblocking(true).map_err(error)?;
        // The kernel limits the buffer to `net.core.rmem_max`: a smaller one loses parts, which are sent again.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES);
        Ok(Datagrams {
            socket,
            switch: moves.switch,
            peers: moves.peers.iter().map(|peer| (peer.id, peer.address)).collect(),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            unsent: 0,
        })
    }

    /// The payload of the next received datagram.
    pub(crate) fn receive(&mut self) -> io::Result<Option<&mut [u8]>> {
        match self.socket.recv(&mut self.buffer) {
            Ok(length) => Ok(Some(&mut self.buffer[..length])),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn send(&mut self, transmit: &Transmit) {
        let (to, payload) = match transmit {
            Transmit::Switch(payload) => (Some(&self.switch), &payload[..]),
            Transmit::Server { to, payload } => (self.peers.get(to), &payload[..]),
        };
        let is_sent = to.is_some_and(|to| self.socket.send_to(payload, to).is_ok());
        self.unsent += u64::from(!is_sent);
    }
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
