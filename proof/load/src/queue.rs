//! Requests that wait in the client because their connection is busy.

use crate::protocol::Request;

const NONE: u32 = u32::MAX;

/// The requests waiting for one connection, oldest first. The entries live in a [`Pool`].
#[derive(Clone, Copy, Debug)]
pub struct Line {
    head: u32,
    tail: u32,
}

impl Default for Line {
    fn default() -> Line {
        Line { head: NONE, tail: NONE }
    }
}

impl Line {
    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

/// Room for a fixed number of waiting requests, shared by all connections of a thread. It grows to its bound
/// once and is never given back: nothing is allocated per request.
#[derive(Debug)]
pub struct Pool {
    entries: Vec<Entry>,
    free: u32,
    bound: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    intended_ns: u64,
    request: Request,
    next: u32,
}

impl Pool {
    /// Room for `bound` requests, at most 2^32 − 1.
    pub fn new(bound: usize) -> Pool {
        Pool { entries: Vec::new(), free: NONE, bound: bound.min(NONE as usize) }
    }

    /// Puts a request at the end of `line`; false when there is no room left.
    #[must_use]
    pub fn push(&mut self, line: &mut Line, intended_ns: u64, request: Request) -> bool {
        let entry = Entry { intended_ns, request, next: NONE };
        let index = match self.entries.get(self.free as usize) {
            Some(free) => {
                let index = self.free;
                self.free = free.next;
                self.entries[index as usize] = entry;
                index
            }
            None if self.entries.len() < self.bound => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
            None => return false,
        };
        if line.is_empty() {
            line.head = index;
        } else {
            self.entries[line.tail as usize].next = index;
        }
        line.tail = index;
        true
    }

    /// Takes the request that has waited longest in `line`, with its intended time.
    pub fn pop(&mut self, line: &mut Line) -> Option<(u64, Request)> {
        let index = line.head;
        let entry = *self.entries.get(index as usize)?;
        line.head = entry.next;
        self.entries[index as usize].next = self.free;
        self.free = index;
        Some((entry.intended_ns, entry.request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_their_order_and_share_the_bound() {
        let mut pool = Pool::new(5);
        let (mut a, mut b) = (Line::default(), Line::default());
        let request = |key| Request { key, write: false };
        for round in 0..10u64 {
            assert!(pool.push(&mut a, round, request(1)));
            assert!(pool.push(&mut b, round + 100, request(2)));
            assert!(pool.push(&mut a, round + 1, request(3)));
            assert!(pool.push(&mut a, round + 2, request(4)));
            assert!(pool.push(&mut b, round + 101, request(5)));
            assert!(!pool.push(&mut b, 0, request(6)), "the sixth does not fit");
            assert_eq!(pool.pop(&mut a), Some((round, request(1))));
            assert!(pool.push(&mut b, round + 102, request(7)));
            assert_eq!(pool.pop(&mut b), Some((round + 100, request(2))));
            assert_eq!(pool.pop(&mut a), Some((round + 1, request(3))));
            assert_eq!(pool.pop(&mut a), Some((round + 2, request(4))));
            assert_eq!(pool.pop(&mut a), None);
            assert_eq!(pool.pop(&mut b), Some((round + 101, request(5))));
            assert_eq!(pool.pop(&mut b), Some((round + 102, request(7))));
            assert!(a.is_empty() && b.is_empty());
        }
    }
}
