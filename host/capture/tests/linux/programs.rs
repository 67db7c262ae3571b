//! The BPF programs of `host/bpf` as those that a capture can use.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use spillway_bpf::{PeerTimestamps, Stragglers};
use spillway_capture::{CopyingFilter, PeerStamp, PeerStamps};

/// Room for copies in the filter's ring.
const RING_BYTES: u32 = 4 << 20;

#[derive(Debug)]
pub struct Filter {
    stragglers: Stragglers,
    program: OwnedFd,
}

#[derive(Debug)]
pub struct Stamps(PeerTimestamps);

impl Filter {
    pub fn load() -> Box<Filter> {
        let stragglers = Stragglers::load(RING_BYTES).unwrap();
        let program = stragglers.with_filter(|program| program.try_clone_to_owned()).unwrap();
        Box::new(Filter { stragglers, program })
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

impl Stamps {
    pub fn load() -> Box<Stamps> {
        Box::new(Stamps(PeerTimestamps::load().unwrap()))
    }
}

impl PeerStamps for Stamps {
    fn read(&self, local: SocketAddr, peer: SocketAddr, cookie: u64) -> io::Result<Option<PeerStamp>> {
        let stamp = self.0.read(local, peer, cookie).map_err(io::Error::other)?;
        Ok(stamp.map(|stamp| PeerStamp { recent: stamp.recent, age: stamp.age }))
    }
}
