//! The event queue of a world, and the events of a simulated network.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use spillway_transport::{Conn, Time};

use crate::socket::{HostId, Segment};

/// An event in a network.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names of the fields suffice")]
pub enum NetworkEvent {
    /// A connection attempt arrives at the host with the address `target`.
    Syn { from: (HostId, Conn), source: SocketAddr, target: SocketAddr },
    /// A segment arrives; a reset in answer goes to `from`.
    Segment { at: HostId, conn: Conn, from: Option<(HostId, Conn)>, segment: Segment },
    /// A host's turn is due.
    Turn(HostId),
    /// A host's timer, set to this time, expires.
    Wake(HostId, Time),
    /// An event of the world itself, such as a fault or a restart; the world defines the numbers.
    World(u64),
}

/// A queue of events in order of time; events with equal times stay in order of insertion.
pub(crate) struct Agenda<E> {
    queue: BinaryHeap<Reverse<Entry<E>>>,
    added: u64,
}

impl<E> Default for Agenda<E> {
    fn default() -> Agenda<E> {
        Agenda { queue: BinaryHeap::new(), added: 0 }
    }
}

impl<E> Agenda<E> {
    pub(crate) fn add(&mut self, at: Time, event: E) {
        self.added += 1;
        self.queue.push(Reverse(Entry { at, order: self.added, event }));
    }

    pub(crate) fn take(&mut self) -> Option<(Time, E)> {
        self.queue.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }

    pub(crate) fn next_at(&self) -> Option<Time> {
        self.queue.peek().map(|Reverse(entry)| entry.at)
    }
}

struct Entry<E> {
    at: Time,
    order: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Entry<E>) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Entry<E>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Entry<E>) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}
