//! The event queue of a world, and the events of a network.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use spillway_transport::{Conn, Time};

use crate::socket::{HostId, Segment};

/// An event in a network.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names are sufficient")]
pub enum NetworkEvent {
    /// A connection attempt arrives at the host with the address `target`.
    Syn { from: (HostId, Conn), source: SocketAddr, target: SocketAddr },
    /// A segment arrives; a reset in answer goes to `from`.
    Segment { at: HostId, conn: Conn, from: Option<(HostId, Conn)>, segment: Segment },
    /// A host has a turn.
    Turn(HostId),
    /// A host's timer, set for this time, runs out.
    Wake(HostId, Time),
    /// An event of the world itself, by a number that the world chose: a fault, a restart.
    World(u64),
}

/// Events in order of time; events at the same time, in order of insertion.
pub(crate) struct Agenda<H> {
    queue: BinaryHeap<Reverse<Entry<H>>>,
    added: u64,
}

impl<H> Default for Agenda<H> {
    fn default() -> Agenda<H> {
        Agenda { queue: BinaryHeap::new(), added: 0 }
    }
}

impl<H> Agenda<H> {
    pub(crate) fn add(&mut self, at: Time, what: H) {
        self.added += 1;
        self.queue.push(Reverse(Entry { at, order: self.added, what }));
    }

    pub(crate) fn take(&mut self) -> Option<(Time, H)> {
        self.queue.pop().map(|Reverse(entry)| (entry.at, entry.what))
    }

    pub(crate) fn next_at(&self) -> Option<Time> {
        self.queue.peek().map(|Reverse(entry)| entry.at)
    }
}

struct Entry<H> {
    at: Time,
    order: u64,
    what: H,
}

impl<H> PartialEq for Entry<H> {
    fn eq(&self, other: &Entry<H>) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<H> Eq for Entry<H> {}

impl<H> PartialOrd for Entry<H> {
    fn partial_cmp(&self, other: &Entry<H>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<H> Ord for Entry<H> {
    fn cmp(&self, other: &Entry<H>) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}
