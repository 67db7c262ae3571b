//! What BPF programs add to a capture. This crate contains none, so that it builds without clang; those of `host/bpf`
//! (`Stragglers` and `PeerTimestamps`) have what these traits ask for.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// A loaded socket filter that accepts nothing, and copies each packet to a ring.
pub trait CopyingFilter: fmt::Debug + Send {
    /// The program, for SO_ATTACH_BPF.
    fn program(&self) -> BorrowedFd<'_>;

    /// The next copy in the ring, if there is one: the socket's cookie (SO_COOKIE), and the packet with its IP header.
    /// Checksums need not be valid, and the packet may consist of several segments that the kernel has merged.
    ///
    /// # Errors
    /// The kernel refuses to read the ring.
    fn poll(&mut self) -> io::Result<Option<(u64, Vec<u8>)>>;
}

/// Reads TS.Recent (RFC 7323 §4.3), which no socket option reveals.
pub trait PeerStamps: fmt::Debug + Send {
    /// The latest timestamp of a connection's peer. `None` if none has arrived.
    ///
    /// # Errors
    /// The kernel does not run the program.
    fn read(&self, local: SocketAddr, peer: SocketAddr, cookie: u64) -> io::Result<Option<PeerStamp>>;
}

/// The latest timestamp that a connection has accepted from its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStamp {
    /// TS.Recent, in units of the peer's clock.
    pub recent: u32,
    /// Time since it arrived.
    pub age: Duration,
}
