//! Requests that wait in the client until their connection is idle.

use crate::protocol::Request;

const NONE: u32 = u32::MAX;

/// The waiting requests of one connection, oldest first: a linked list of entries in a [`Pool`].
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    head: u32,
    tail: u32,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { head: NONE, tail: NONE }
    }
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

/// The waiting requests of all connections of a thread, up to a bound. Memory grows to the bound and is reused, so that
/// requests do not allocate.
#[derive(Debug)]
pub struct Pool {
    entries: Vec<Entry>,
    first_free: u32,
    bound: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    intended_ns: u64,
    request: Request,
    next: u32,
}

impl Pool {
    pub fn new(bound: usize) -> Pool {
        Pool { entries: Vec::new(), first_free: NONE, bound: bound.min(NONE as usize) }
    }

    /// Appends a request to `queue`. Returns false if the pool is at its bound.
    #[must_use]
    pub fn push(&mut self, queue: &mut Queue, intended_ns: u64, request: Request) -> bool {
        let entry = Entry { intended_ns, request, next: NONE };
        let index = match self.entries.get(self.first_free as usize) {
            Some(free) => {
                let index = self.first_free;
                self.first_free = free.next;
                self.entries[index as usize] = entry;
                index
            }
            None if self.entries.len() < self.bound => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
            None => return false,
        };
        if queue.is_empty() {
            queue.head = index;
        } else {
            self.entries[queue.tail as usize].next = index;
        }
        queue.tail = index;
        true
    }

    /// Removes the oldest request of `queue`, and returns it with its intended send time.
    pub fn pop(&mut self, queue: &mut Queue) -> Option<(u64, Request)> {
        let index = queue.head;
        let entry = *self.entries.get(index as usize)?;
        queue.head = entry.next;
        self.entries[index as usize].next = self.first_free;
        self.first_free = index;
        Some((entry.intended_ns, entry.request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_keep_their_order_and_share_the_bound() {
        let mut pool = Pool::new(5);
        let (mut first, mut second) = (Queue::default(), Queue::default());
        let request = |key| Request { key, write: false };
        for round in 0..10u64 {
            assert!(pool.push(&mut first, round, request(1)));
            assert!(pool.push(&mut second, round + 100, request(2)));
            assert!(pool.push(&mut first, round + 1, request(3)));
            assert!(pool.push(&mut first, round + 2, request(4)));
            assert!(pool.push(&mut second, round + 101, request(5)));
            assert!(!pool.push(&mut second, 0, request(6)), "the pool should refuse a sixth request");
            assert_eq!(pool.pop(&mut first), Some((round, request(1))));
            assert!(pool.push(&mut second, round + 102, request(7)));
            assert_eq!(pool.pop(&mut second), Some((round + 100, request(2))));
            assert_eq!(pool.pop(&mut first), Some((round + 1, request(3))));
            assert_eq!(pool.pop(&mut first), Some((round + 2, request(4))));
            assert_eq!(pool.pop(&mut first), None);
            assert_eq!(pool.pop(&mut second), Some((round + 101, request(5))));
            assert_eq!(pool.pop(&mut second), Some((round + 102, request(7))));
            assert!(first.is_empty() && second.is_empty());
        }
    }
}
