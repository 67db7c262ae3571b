//! What will happen, in order of time; at the same time, in the order in which it was added.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use spillway_transport::Time;

use super::helper::Message;

/// What is going to happen.
#[derive(Debug)]
pub(super) enum Happening {
    /// A connection's application may want something.
    Ask(u32),
    /// A message arrives at the server's ordinary way in.
    Arrive(Message),
    /// A batch arrives at the server, of this helper.
    Batch(u16, Vec<Message>),
    /// The server has done its present piece of work.
    Served,
    /// A helper has received a message.
    Received(u16, Message),
    /// A helper sends what it has.
    Flush(u16),
    /// A batch of replies arrives at a helper.
    Replies(u16, Vec<Message>),
    /// A reply arrives at its client.
    Reply(Message),
    /// A connection could not go where it was to go.
    Refused(u32, u32),
    /// A connection notices that its helper is gone.
    Lost(u32, u32),
    /// A connection returns to the server by itself.
    Return(u32, u32),
    /// A client has no patience any more.
    GiveUp(u32, u64),
    /// A process asked for this time.
    Wake(u32, Time),
    /// The server looks at itself.
    Look,
    /// The server may send a session back.
    Drain,
    /// Something goes wrong, by index; or stops to.
    Fault(usize),
}

#[derive(Default)]
pub(super) struct Agenda {
    queue: BinaryHeap<Reverse<Entry>>,
    added: u64,
}

impl Agenda {
    pub fn add(&mut self, at: Time, what: Happening) {
        self.added += 1;
        self.queue.push(Reverse(Entry { at, order: self.added, what }));
    }

    pub fn take(&mut self) -> Option<(Time, Happening)> {
        self.queue.pop().map(|Reverse(entry)| (entry.at, entry.what))
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
