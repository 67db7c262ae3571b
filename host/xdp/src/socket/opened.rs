//! A second receive ring of a queue, for packets of connections that the stack has opened.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::ring::Consumer;
use super::system::{self, Descriptor};
use super::{SocketError, Statistics};
use crate::interface::Interface;

/// A receiving socket with the queue and frames of another one, so that threads can wait for its packets
/// only.
#[derive(Debug)]
pub(super) struct OpenedRing {
    fd: OwnedFd,
    pub(super) receive: Consumer<Descriptor>,
}

impl OpenedRing {
    /// Opens a ring with this number of entries at the queue of the bound socket `main`.
    pub(super) fn open(
        interface: &Interface,
        queue: u32,
        main: &OwnedFd,
        entries: u32,
    ) -> Result<OpenedRing, SocketError> {
        let fd = system::socket().map_err(SocketError::Open)?;
        system::set_receive_ring_size(&fd, entries).map_err(SocketError::Memory)?;
        let offsets = system::ring_offsets(&fd).map_err(SocketError::Memory)?;
        let receive = Consumer::map(&fd, &offsets.rx, libc::XDP_PGOFF_RX_RING as u64, entries)
            .map_err(SocketError::Memory)?;
        system::bind_shared(&fd, interface.index, queue, main).map_err(|source| SocketError::Bind {
            interface: interface.name.clone(),
            queue,
            source,
        })?;
        Ok(OpenedRing { fd, receive })
    }

    /// The kernel's counters of this ring. The other socket reports those of the shared rings.
    pub(super) fn statistics(&self) -> io::Result<Statistics> {
        let Statistics { dropped, ring_full, .. } = system::statistics(&self.fd)?;
        Ok(Statistics { dropped, ring_full, ..Statistics::default() })
    }
}

impl AsFd for OpenedRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
