//! The one queue of everything that will happen.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use spillway_transport::{Conn, Time};

use crate::socket::{HostId, Segment};

/// What is going to happen.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Happening {
    /// A connection attempt arrives.
    Syn { from: (HostId, Conn), source: SocketAddr, target: SocketAddr },
    /// A segment arrives.
    Segment { at: HostId, conn: Conn, from: Option<(HostId, Conn)>, segment: Segment },
    /// A host has something to do.
    Turn(HostId),
    /// A host's application asked for this time.
    Wake(HostId, Time),
    /// The world's own: faults, the end of the storm.
    World(u64),
}

/// What will happen, in order of time; at the same time, in the order in which it was added.
#[derive(Default)]
pub(crate) struct Agenda {
    queue: BinaryHeap<Reverse<Entry>>,
    added: u64,
}

impl Agenda {
    pub(crate) fn add(&mut self, at: Time, what: Happening) {
        self.added += 1;
        self.queue.push(Reverse(Entry { at, order: self.added, what }));
    }

    pub(crate) fn take(&mut self) -> Option<(Time, Happening)> {
        self.queue.pop().map(|Reverse(entry)| (entry.at, entry.what))
    }

    pub(crate) fn next_at(&self) -> Option<Time> {
        self.queue.peek().map(|Reverse(entry)| entry.at)
    }
}

struct Entry {
    at: Time,
    order: u64,
    what: Happening,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}
