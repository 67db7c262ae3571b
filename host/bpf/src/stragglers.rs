//! Keeps the packets that reach a socket after its connection was held: they had passed the switch's program before, and would
//! be acknowledged without being part of the captured state.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use libbpf_rs::{Object, num_possible_cpus};

use crate::map::Map;
use crate::ring::Ring;
use crate::{BpfError, object};

/// The name of the program, and of the object in messages.
const NAME: &str = "keep";
/// The smallest ring has room for a packet of any length.
const RING_BYTES_MIN: u32 = 128 * 1024;
/// The largest ring.
const RING_BYTES_MAX: u32 = 1 << 30;

/// A packet that a socket has not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Straggler {
    /// The socket's cookie (`SO_COOKIE`).
    pub cookie: u64,
    /// The packet, with its IP header. The kernel may have merged several segments of the peer into it; its checksum is
    /// then the sum of the pseudo-header. The packet may be damaged: TCP verifies the checksum of a segment of more than 76 bytes
    /// only behind the filter, so the reader must verify it.
    pub packet: Vec<u8>,
}

/// A filter for sockets that accepts no packet, and copies each.
///
/// The file descriptor is readable when [`poll`](Stragglers::poll) has something to return.
#[derive(Debug)]
pub struct Stragglers {
    object: Object,
    dropped: Map,
    copies: Ring<Straggler>,
}

impl Stragglers {
    /// Loads the filter. `bytes_max`: room for copies of all sockets, rounded up to a power of two; at least 128 KiB.
    ///
    /// # Errors
    /// The process lacks CAP_BPF, or the kernel has no memory.
    pub fn load(bytes_max: u32) -> Result<Stragglers, BpfError> {
        let cpus = num_possible_cpus().map_err(BpfError::of("cannot count the CPUs"))?;
        let ring_bytes = bytes_max.clamp(RING_BYTES_MIN, RING_BYTES_MAX).next_power_of_two();
        let mut object = object::open(NAME, object::STRAGGLERS)?;
        object::set_size(&mut object, "copies", cpus.try_into().unwrap_or(u32::MAX))?;
        object::set_size(&mut object, "stragglers", ring_bytes)?;
        let object = object::load(NAME, object)?;
        let dropped = Map::of(&object, "dropped")?;
        let copies = Ring::open(&Map::of(&object, "stragglers")?, Straggler::parse)?;
        Ok(Stragglers { object, dropped, copies })
    }

    /// Calls `use_it` with the filter, for `SO_ATTACH_BPF` of a socket. The socket keeps the filter until `SO_DETACH_FILTER`.
    pub fn with_filter<T>(&self, use_it: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        use_it(object::program(NAME, &self.object).as_fd())
    }

    /// The next packet, if there is one. To be called until it returns `None`.
    ///
    /// # Errors
    /// The kernel refuses to read the ring.
    pub fn poll(&mut self) -> Result<Option<Straggler>, BpfError> {
        self.copies.poll()
    }

    /// Packets of all sockets that were not copied: there was no room, or a segment was longer than 65,535 bytes. Their
    /// senders repeat them.
    ///
    /// # Errors
    /// The kernel refuses to read the map.
    pub fn dropped(&self) -> Result<u64, BpfError> {
        self.dropped.sum(0)
    }
}

impl AsRawFd for Stragglers {
    fn as_raw_fd(&self) -> RawFd {
        self.copies.as_raw_fd()
    }
}

impl Straggler {
    /// Reads a `struct copy` of `c/stragglers.bpf.c`.
    fn parse(bytes: &[u8]) -> Option<Straggler> {
        let (cookie, packet) = bytes.split_first_chunk()?;
        Some(Straggler { cookie: u64::from_ne_bytes(*cookie), packet: packet.to_vec() })
    }
}
