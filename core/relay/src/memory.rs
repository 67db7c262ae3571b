//! Memory of waiting bytes: the total against its bound, and the share of each client.

use core::time::Duration;

use spillway_policy::memory::{MemoryBound, closing_rank};
use spillway_transport::{Conn, Transport};

pub(crate) use spillway_policy::memory::Unread;

/// Bytes that a client may send before the next grant. The relay must buffer them when the client's link stalls.
pub(crate) const CLIENT_GRANT_BYTES: usize = 64 * 1024;
const SCARCE_GRANT_BYTES: usize = 4 * 1024;

/// Allocated bytes against the bound of [`Config::memory_bytes_max`](crate::Config).
#[derive(Debug)]
pub(crate) struct Memory {
    clients: usize,
    /// Bytes of batches to servers beyond the size of one turn's batch, and of incomplete records from
    /// servers.
    links: usize,
    /// Bytes in the transport's queues at the beginning of the turn, less those that were freed since then.
    transport: usize,
    /// Bytes by which plain clients' windows have grown.
    windows: usize,
    bound: MemoryBound,
    /// Number of times that a client was paused.
    pauses: u64,
}

impl Memory {
    pub(crate) fn new(max: usize) -> Memory {
        Memory { clients: 0, links: 0, transport: 0, windows: 0, bound: MemoryBound::new(max), pauses: 0 }
    }

    pub(crate) fn max(&self) -> usize {
        self.bound.max()
    }

    pub(crate) fn set_max(&mut self, max: usize) {
        self.bound.set_max(max);
    }

    /// Bytes that the relay buffers for and from clients, without links and transport.
    pub(crate) fn clients(&self) -> usize {
        self.clients
    }

    pub(crate) fn total(&self) -> usize {
        self.clients + self.links + self.transport
    }

    /// Call this at the beginning of a turn, when the host has taken what it could from the transport's queues.
    pub(crate) fn begin_turn<T: Transport>(&mut self, out: &T) {
        self.transport = out.held_by_all();
    }

    /// Call this at the end of a turn, because the next turn may begin much later: subtracts what the
    /// transport has freed in the turn. Bytes that were queued in this turn are counted at the beginning of
    /// the next.
    pub(crate) fn end_turn<T: Transport>(&mut self, out: &T) {
        self.transport = self.transport.min(out.held_by_all());
    }

    /// Subtracts the transport's queue of a connection that was aborted.
    pub(crate) fn transport_freed(&mut self, bytes: usize) {
        self.transport = self.transport.saturating_sub(bytes);
    }

    /// Replaces a client's share of the total.
    pub(crate) fn resize_client(&mut self, from: usize, to: usize) {
        self.clients = self.clients - from + to;
    }

    pub(crate) fn resize_link(&mut self, from: usize, to: usize) {
        self.links = self.links - from + to;
    }

    /// Reserves `bytes` for the growth of a plain client's window. False: the growth of all windows would
    /// exceed a quarter of the memory. A window may be full twice, here and in the transport, so clients that
    /// do not read occupy, beyond their initial windows, at most half of the memory.
    pub(crate) fn reserve_window(&mut self, bytes: usize) -> bool {
        let fits = self.windows + bytes <= self.bound.max() / 4;
        self.windows += if fits { bytes } else { 0 };
        fits
    }

    pub(crate) fn release_window(&mut self, bytes: usize) {
        self.windows -= bytes;
    }

    pub(crate) fn count_pause(&mut self) {
        self.pauses += 1;
    }

    pub(crate) fn pauses(&self) -> u64 {
        self.pauses
    }

    pub(crate) fn is_exceeded(&self) -> bool {
        self.bound.is_exceeded(self.total())
    }

    /// Whether enough clients were closed, so that a client whose bytes have waited for `age` stays.
    pub(crate) fn is_enough_closed(&self, age: Duration) -> bool {
        self.bound.is_enough_closed(self.total(), age)
    }

    /// Whether use is low enough for memory to be no longer scarce.
    pub(crate) fn is_calm(&self) -> bool {
        self.bound.is_calm(self.total())
    }

    /// Whether clients that do not read are paused, and others are granted less.
    pub(crate) fn is_scarce(&self) -> bool {
        self.bound.is_scarce()
    }

    /// Decides whether memory is scarce. True if the state has changed.
    pub(crate) fn update_scarcity(&mut self) -> bool {
        self.bound.judge(self.total())
    }

    pub(crate) fn grant_bytes(&self) -> usize {
        if self.is_scarce() { SCARCE_GRANT_BYTES } else { CLIENT_GRANT_BYTES }
    }
}

/// A client's memory in the relay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) waiting_bytes: usize,
    /// Allocated memory for the waiting bytes.
    pub(crate) memory_bytes: usize,
    /// Age of the oldest bytes that the client has not read.
    pub(crate) age: Duration,
}

/// A client's memory in the relay and in the transport, for the choice of clients to close.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    pub(crate) conn: Conn,
    pub(crate) memory_bytes: usize,
    pub(crate) age: Duration,
}

impl Holding {
    pub(crate) fn rank(&self) -> (u128, usize) {
        closing_rank(self.memory_bytes, self.age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_links_count_against_the_bound() {
        let mut memory = Memory::new(800);
        memory.resize_client(0, 600);
        assert!(!memory.update_scarcity() && !memory.is_scarce(), "memory should not be scarce yet");
        memory.resize_link(0, 1);
        assert!(
            memory.update_scarcity() && memory.is_scarce() && !memory.is_exceeded(),
            "memory should be scarce, but not exceeded"
        );
        assert_eq!(memory.grant_bytes(), SCARCE_GRANT_BYTES);
        memory.resize_client(600, 500);
        assert!(
            !memory.update_scarcity() && memory.is_scarce(),
            "memory should stay scarce at 501, above five eighths"
        );
        memory.resize_link(1, 0);
        assert!(memory.update_scarcity() && !memory.is_scarce(), "memory should be sufficient again");
    }
}
