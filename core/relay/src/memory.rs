//! What all waiting bytes take together, and what each client holds.

use core::time::Duration;

use spillway_policy::memory::{MemoryBound, closing_rank};
use spillway_transport::{Conn, Transport};

pub(crate) use spillway_policy::memory::Unread;

/// What a client may send before it is granted more: what we must be able to buffer when its link stalls;
pub(crate) const CLIENT_GRANT_BYTES: usize = 64 * 1024;
/// and while memory is scarce.
const SCARCE_GRANT_BYTES: usize = 4 * 1024;

/// Allocated bytes, in all their places, against the bound of [`Config::memory_bytes_max`](crate::Config).
#[derive(Debug)]
pub(crate) struct Memory {
    /// What the relay buffers for and from clients.
    clients: usize,
    /// Batches to servers, where they are larger than one turn makes them.
    links: usize,
    /// What the transport had queued when the turn began, without what it has freed since.
    transport: usize,
    /// Bytes by which plain clients' windows are larger than at first.
    windows: usize,
    bound: MemoryBound,
    /// Clients whose requests were not read any further because they did not read their replies.
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

    /// What the relay itself buffers for and from clients.
    pub(crate) fn clients(&self) -> usize {
        self.clients
    }

    pub(crate) fn total(&self) -> usize {
        self.clients + self.links + self.transport
    }

    /// A turn begins: all that the last one gave to the transport is with the host, unless the host did not take it.
    pub(crate) fn look<T: Transport>(&mut self, out: &T) {
        self.transport = out.held_by_all();
    }

    /// A turn ends: what the transport has freed in it counts no more. What it was given in this turn is looked at when the
    /// next one begins, but there may be none for long.
    pub(crate) fn turn_ends<T: Transport>(&mut self, out: &T) {
        self.transport = self.transport.min(out.held_by_all());
    }

    /// A connection of the transport was ended: what was queued for it is freed.
    pub(crate) fn freed(&mut self, held: usize) {
        self.transport = self.transport.saturating_sub(held);
    }

    /// An amount of a client has changed.
    pub(crate) fn changed(&mut self, from: usize, to: usize) {
        self.clients = self.clients - from + to;
    }

    /// An amount of a link has changed.
    pub(crate) fn link_changed(&mut self, from: usize, to: usize) {
        self.links = self.links - from + to;
    }

    /// Whether a plain client's window may grow by so much: all together by a quarter of the memory. A window may be full
    /// twice, here and in the transport, so clients that do not read make memory scarce only by their number.
    pub(crate) fn widen(&mut self, more: usize) -> bool {
        let may = self.windows + more <= self.bound.max() / 4;
        self.windows += if may { more } else { 0 };
        may
    }

    /// A client whose window had grown by so much is gone.
    pub(crate) fn narrow(&mut self, widened: usize) {
        self.windows -= widened;
    }

    /// A client's requests are not read any further because it does not read its replies.
    pub(crate) fn count_pause(&mut self) {
        self.pauses += 1;
    }

    /// How often clients were paused, since the start.
    pub(crate) fn pauses(&self) -> u64 {
        self.pauses
    }

    pub(crate) fn is_exceeded(&self) -> bool {
        self.bound.is_exceeded(self.total())
    }

    /// Whether closing of the largest ends before a client whose bytes have waited for `age`.
    pub(crate) fn is_enough_closed(&self, age: Duration) -> bool {
        self.bound.is_enough_closed(self.total(), age)
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.bound.is_calm(self.total())
    }

    /// Clients that do not read are paused from here on, and others granted less.
    pub(crate) fn is_scarce(&self) -> bool {
        self.bound.is_scarce()
    }

    /// Decides whether memory is scarce. True if that has changed.
    pub(crate) fn judge(&mut self) -> bool {
        self.bound.judge(self.total())
    }

    /// What a client may send before it is granted more.
    pub(crate) fn grant_bytes(&self) -> usize {
        if self.is_scarce() { SCARCE_GRANT_BYTES } else { CLIENT_GRANT_BYTES }
    }
}

/// What a client holds here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// Bytes that wait.
    pub(crate) waits: usize,
    /// Bytes of memory that they take.
    pub(crate) bytes: usize,
    /// How long its oldest bytes have waited for it.
    pub(crate) age: Duration,
}

/// What a client holds, here and in the transport, as it is compared with others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    pub(crate) conn: Conn,
    /// Bytes of memory.
    pub(crate) bytes: usize,
    /// How long its oldest bytes have waited for it.
    pub(crate) age: Duration,
}

impl Holding {
    pub(crate) fn rank(&self) -> (u128, usize) {
        closing_rank(self.bytes, self.age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_places_count_against_the_bound() {
        let mut memory = Memory::new(800);
        memory.changed(0, 600);
        assert!(!memory.judge() && !memory.is_scarce());
        memory.link_changed(0, 1);
        assert!(memory.judge() && memory.is_scarce() && !memory.is_exceeded());
        assert_eq!(memory.grant_bytes(), SCARCE_GRANT_BYTES);
        memory.changed(600, 500);
        assert!(!memory.judge() && memory.is_scarce(), "one byte above five eighths");
        memory.link_changed(1, 0);
        assert!(memory.judge() && !memory.is_scarce());
    }
}
