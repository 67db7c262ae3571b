//! Reports TCP sockets that the kernel has removed (Prism §4.3, "TCP state tracking", which needs a kernel module there).
//!
//! The kernel may send segments of a connection for minutes after its application has closed the socket, and it does not report
//! when it has ended. Until then a switch must know where these segments come from, and the connection's place is not free.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use libbpf_rs::Link;

use crate::error::Needs;
use crate::map::Map;
use crate::ring::Ring;
use crate::{BpfError, object};

/// The object's name in messages.
const NAME: &str = "removed";
/// Bytes of `struct removal` in `c/removed.bpf.c`.
const REMOVAL_BYTES: usize = 16;
/// Bytes of a report in the ring, with the ring's own header.
const REPORT_BYTES: u32 = 8 + REMOVAL_BYTES as u32;
/// A ring has a whole number of pages, and a power of two bytes.
const RING_BYTES_MIN: u32 = 4096;
/// Maximum of `watched_max`.
const WATCHED_MAX: u32 = 1 << 20;

/// `BPF_TCP_FIN_WAIT2` of Linux.
const FIN_WAIT_2: u32 = 5;
/// `BPF_TCP_CLOSING` of Linux.
const CLOSING: u32 = 11;

/// A watched socket that the kernel has removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The socket's cookie (`SO_COOKIE`).
    pub cookie: u64,
    /// Whether the kernel may still answer segments of the connection, because it waits in TIME-WAIT (RFC 9293 §3.6.1). Also
    /// true if the connection had ended before it was watched, and after FIN-WAIT-2 has expired: the kernel may have reset the
    /// connection then.
    pub may_be_in_time_wait: bool,
}

/// Watches TCP sockets of this host until the kernel has removed them.
///
/// A socket is identified by its cookie: at its end it has no addresses and ports any more. The file descriptor is readable
/// when [`poll`](RemovedSockets::poll) has something to return.
#[derive(Debug)]
pub struct RemovedSockets {
    watched: Map,
    removals: Ring<Removal>,
    /// The programs run as long as these exist.
    _links: [Link; 2],
}

impl RemovedSockets {
    /// Loads and attaches the programs. `watched_max`: sockets that are watched at a time, at most 1,048,576.
    ///
    /// # Errors
    /// The process lacks CAP_BPF or CAP_PERFMON; it needs both.
    pub fn load(watched_max: u32) -> Result<RemovedSockets, BpfError> {
        let watched_max = watched_max.clamp(1, WATCHED_MAX);
        // Twice the room: a report leaves the ring shortly after its entry has left the table.
        let ring_bytes = (2 * watched_max * REPORT_BYTES).next_power_of_two().max(RING_BYTES_MIN);
        let mut object = object::open(NAME, object::REMOVED)?;
        object::set_size(&mut object, "watched", watched_max)?;
        object::set_size(&mut object, "removals", ring_bytes)?;
        let object = object::load(NAME, object).map_err(|error| error.needing(Needs::Tracing))?;
        let attach = |program| {
            let attached = object::program(program, &object).attach();
            attached.map_err(BpfError::of(format!("cannot attach the program `{program}`")))
        };
        Ok(RemovedSockets {
            watched: Map::of(&object, "watched")?,
            removals: Ring::open(&Map::of(&object, "removals")?, Removal::parse)?,
            _links: [attach("note_end")?, attach("report")?],
        })
    }

    /// Watches a socket until [`poll`](RemovedSockets::poll) has returned it. To be called before the connection ends, at the
    /// latest before the socket is closed.
    ///
    /// # Errors
    /// As many sockets are watched as `watched_max` allows ([`BpfError::is_full`]).
    pub fn watch(&self, cookie: u64) -> Result<(), BpfError> {
        self.watched.set(&cookie.to_ne_bytes(), &[0; 8])
    }

    /// Stops watching a socket. It may already be among those that [`poll`](RemovedSockets::poll) returns.
    ///
    /// # Errors
    /// The kernel has no memory.
    pub fn forget(&self, cookie: u64) -> Result<(), BpfError> {
        self.watched.remove(&cookie.to_ne_bytes())
    }

    /// The next socket that was removed, if there is one. To be called until it returns `None`.
    ///
    /// # Errors
    /// The kernel refuses to read or to change a map.
    pub fn poll(&mut self) -> Result<Option<Removal>, BpfError> {
        let removal = self.removals.poll()?;
        if let Some(removal) = &removal {
            self.forget(removal.cookie)?;
        }
        Ok(removal)
    }
}

impl AsFd for RemovedSockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.removals.as_fd()
    }
}

impl AsRawFd for RemovedSockets {
    fn as_raw_fd(&self) -> RawFd {
        self.removals.as_raw_fd()
    }
}

impl Removal {
    /// Reads a `struct removal` of `c/removed.bpf.c`.
    fn parse(bytes: &[u8]) -> Option<Removal> {
        let (cookie, rest) = bytes.split_first_chunk()?;
        let (last_state, rest) = rest.split_first_chunk()?;
        let (error, _) = rest.split_first_chunk()?;
        let (last_state, error) = (u32::from_ne_bytes(*last_state), u32::from_ne_bytes(*error));
        // A connection that ends with an error, such as a reset, leaves nothing behind.
        let may_be_in_time_wait = error == 0 && matches!(last_state, 0 | FIN_WAIT_2 | CLOSING);
        Some(Removal { cookie: u64::from_ne_bytes(*cookie), may_be_in_time_wait })
    }
}
