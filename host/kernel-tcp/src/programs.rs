//! The BPF programs that a capture uses.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use spillway_bpf::{PeerTimestamps, Stragglers};
use spillway_capture::{CopyingFilter, PeerStamp, PeerStamps};

use crate::error::OpenError;

/// Copies what reaches captured sockets.
#[derive(Debug)]
pub(crate) struct Filter {
    stragglers: Stragglers,
    program: OwnedFd,
}

/// Reads the latest timestamps of peers.
#[derive(Debug)]
pub(crate) struct Stamps(pub(crate) PeerTimestamps);

impl Filter {
    /// `bytes_max`: room for copies of all sockets.
    pub(crate) fn load(bytes_max: u32) -> Result<Filter, OpenError> {
        let stragglers = Stragglers::load(bytes_max).map_err(OpenError::Program)?;
        let program =
            stragglers.with_filter(|program| program.try_clone_to_owned()).map_err(OpenError::Host)?;
        Ok(Filter { stragglers, program })
    }
}

impl CopyingFilter for Filter {
    fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    fn poll(&mut self) -> io::Result<Option<(u64, Vec<u8>)>> {
        let copy = self.stragglers.poll().map_err(io::Error::other)?;
        Ok(copy.map(|copy| (copy.cookie, copy.packet)))
    }
}

impl PeerStamps for Stamps {
    fn read(&self, local: SocketAddr, peer: SocketAddr, cookie: u64) -> io::Result<Option<PeerStamp>> {
        let stamp = self.0.read(local, peer, cookie).map_err(io::Error::other)?;
        Ok(stamp.map(|stamp| PeerStamp { recent: stamp.recent, age: stamp.age }))
    }
}
