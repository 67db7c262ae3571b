//! The boundary between a connection and the TCP that carries its bytes: the kernel's sockets, or a user-level stack.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Opens streams. Clones open streams on the same network.
pub trait Network: Clone + fmt::Debug {
    /// The streams of this network.
    type Stream: Stream;

    /// Starts to connect. The stream becomes writable when it is connected or has failed.
    ///
    /// # Errors
    /// The host has no descriptors, ports or memory left, or the connect has failed at once.
    fn connect(&self, target: SocketAddr) -> io::Result<Self::Stream>;
}

/// A TCP connection whose calls never block, with the behaviour of a kernel socket. Dropping a stream closes the
/// connection.
pub trait Stream: fmt::Debug {
    /// Whether the connect has succeeded.
    ///
    /// # Errors
    /// The connect has failed.
    fn is_connected(&self) -> io::Result<bool>;

    /// This end's address.
    ///
    /// # Errors
    /// The connection is lost.
    fn local_address(&self) -> io::Result<SocketAddr>;

    /// Sends a prefix of `bytes` and returns its length.
    ///
    /// # Errors
    /// `WouldBlock` without room; another kind if the connection is lost.
    fn send(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Receives bytes and returns their number; 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if no bytes are available; another kind if the connection is lost.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// As [`receive`](Self::receive), but appends to `buffer` within its capacity.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    fn receive_into(&self, buffer: &mut Vec<u8>) -> io::Result<usize>;

    /// As [`receive`](Self::receive) with a buffer of one byte, but leaves the byte in the stream.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    fn peek(&self) -> io::Result<usize>;

    /// Ends the outgoing direction.
    ///
    /// # Errors
    /// The connection is lost.
    fn finish(&self) -> io::Result<()>;
}

pub(crate) fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}
