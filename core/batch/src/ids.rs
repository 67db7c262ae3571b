//! Ids of a link's virtual connections, assigned by its opener.

use alloc::collections::VecDeque;

use spillway_wire::Id;

/// While fewer than this many ids are free, fresh ones are given first, so that an id rests before it is used
/// again.
const RESTING_MIN: usize = 256;

/// Gives ids from 1 to a maximum, and free ones again, oldest first.
#[derive(Debug)]
pub struct IdPool {
    fresh: u32,
    max: u32,
    free: VecDeque<Id>,
}

impl IdPool {
    /// Ids from 1 to `max`.
    pub fn new(max: u32) -> IdPool {
        IdPool { fresh: 1, max, free: VecDeque::new() }
    }

    /// An id that nobody uses; `None` when all are in use.
    pub fn assign(&mut self) -> Option<Id> {
        if self.free.len() >= RESTING_MIN || self.fresh > self.max {
            return self.free.pop_front();
        }
        let id = Id(self.fresh);
        self.fresh += 1;
        Some(id)
    }

    /// The highest id.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Takes an id back. Call once, when both ends have closed the connection.
    pub fn release(&mut self, id: Id) {
        debug_assert!(id.0 >= 1 && id.0 < self.fresh, "{id} was assigned");
        self.free.push_back(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ids_then_none_then_the_oldest_again() {
        let mut pool = IdPool::new(3);
        assert_eq!([pool.assign(), pool.assign(), pool.assign()], [Some(Id(1)), Some(Id(2)), Some(Id(3))]);
        assert_eq!(pool.assign(), None);
        pool.release(Id(2));
        pool.release(Id(1));
        assert_eq!([pool.assign(), pool.assign(), pool.assign()], [Some(Id(2)), Some(Id(1)), None]);
    }

    #[test]
    fn a_free_id_rests_while_fresh_ones_are_left() {
        let mut pool = IdPool::new(u32::MAX - 1);
        for _ in 0..RESTING_MIN {
            let id = pool.assign().unwrap();
            pool.release(id);
        }
        assert_eq!(pool.assign(), Some(Id(1)), "as many rest as have to");
        assert_eq!(pool.assign(), Some(Id(RESTING_MIN as u32 + 1)));
    }
}
