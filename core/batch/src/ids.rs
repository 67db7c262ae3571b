//! Ids of a link's virtual connections. The link's opener assigns them.

use alloc::collections::VecDeque;

use spillway_wire::Id;

/// While fewer released ids than this are free, unused ids are assigned first, so that an id is not reused at once.
const FREE_MIN: usize = 256;

/// Assigns ids from 1 to a maximum, and reuses released ids in the order of their release.
#[derive(Debug)]
pub struct IdPool {
    next_unused: u32,
    max: u32,
    free: VecDeque<Id>,
}

impl IdPool {
    /// A pool of the ids from 1 to `max`.
    pub fn new(max: u32) -> IdPool {
        IdPool { next_unused: 1, max, free: VecDeque::new() }
    }

    /// Assigns an id. `None`: all are in use.
    pub fn assign(&mut self) -> Option<Id> {
        if self.free.len() >= FREE_MIN || self.next_unused > self.max {
            return self.free.pop_front();
        }
        let id = Id(self.next_unused);
        self.next_unused += 1;
        Some(id)
    }

    /// The highest id that the pool assigns.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Releases an id. Call once, when both ends have closed the connection or the server has refused it.
    pub fn release(&mut self, id: Id) {
        debug_assert!(id.0 >= 1 && id.0 < self.next_unused, "{id} should have been assigned");
        self.free.push_back(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_reused_in_the_order_of_their_release() {
        let mut pool = IdPool::new(3);
        assert_eq!([pool.assign(), pool.assign(), pool.assign()], [Some(Id(1)), Some(Id(2)), Some(Id(3))]);
        assert_eq!(pool.assign(), None);
        pool.release(Id(2));
        pool.release(Id(1));
        assert_eq!([pool.assign(), pool.assign(), pool.assign()], [Some(Id(2)), Some(Id(1)), None]);
    }

    #[test]
    fn unused_ids_are_assigned_before_recently_released_ones() {
        let mut pool = IdPool::new(u32::MAX - 1);
        for _ in 0..FREE_MIN {
            let id = pool.assign().unwrap();
            pool.release(id);
        }
        assert_eq!(pool.assign(), Some(Id(1)), "released ids should be reused once FREE_MIN are free");
        assert_eq!(pool.assign(), Some(Id(FREE_MIN as u32 + 1)));
    }
}
