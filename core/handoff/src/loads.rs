//! Requests for the loads of the other servers, and the loads that the switch has stated.

use alloc::collections::VecDeque;
use core::time::Duration;

use spillway_wire::switch::ServerId;

/// Maximum number of unanswered requests; the agent stops waiting for answers to older ones.
const WAITING_MAX: usize = 64;
/// Maximum number of loads that wait for [`Agent::poll_load`](crate::Agent::poll_load); older ones are forgotten.
const LOADS_MAX: usize = 256;

/// The last heartbeat of another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLoad {
    /// The server.
    pub server: ServerId,
    /// Its load, in the unit of [`Agent::set_load`](crate::Agent::set_load).
    pub load: u32,
    /// How many more connections it can import.
    pub free_places: u32,
    /// Time since the switch received the heartbeat, in whole milliseconds.
    pub age: Duration,
}

/// The requests for the table of owners, and the loads that the answers to them stated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loads {
    pub(crate) is_watched: bool,
    /// Number of the next owner to ask for.
    pub(crate) next_index: u64,
    /// Sequences of requests without an answer.
    waiting: VecDeque<u64>,
    loads: VecDeque<PeerLoad>,
}

impl Loads {
    /// Makes answers to earlier requests void: they state the table of an earlier term.
    pub(crate) fn forget_requests(&mut self) {
        self.waiting.clear();
    }

    pub(crate) fn record_sent(&mut self, sequence: u64) {
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(sequence);
    }

    /// Whether the agent waits for the answer with this sequence.
    pub(crate) fn take(&mut self, sequence: u64) -> bool {
        let index = self.waiting.iter().position(|waiting| *waiting == sequence);
        index.and_then(|index| self.waiting.remove(index)).is_some()
    }

    pub(crate) fn pop(&mut self) -> Option<PeerLoad> {
        self.loads.pop_front()
    }

    pub(crate) fn push(&mut self, load: PeerLoad) {
        if self.loads.len() == LOADS_MAX {
            self.loads.pop_front();
        }
        self.loads.push_back(load);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_loads_are_bounded_and_an_answer_counts_once() {
        let mut loads = Loads::default();
        (0..=WAITING_MAX as u64).for_each(|sequence| loads.record_sent(sequence));
        assert_eq!([0, 1, 1, 99].map(|sequence| loads.take(sequence)), [false, true, false, false]);
        loads.forget_requests();
        assert!(!loads.take(2), "a new hello makes older answers void");
        for load in 0..=LOADS_MAX as u32 {
            loads.push(PeerLoad { server: ServerId(2), load, free_places: 1, age: Duration::ZERO });
        }
        assert_eq!((loads.loads.len(), loads.loads.front().map(|load| load.load)), (LOADS_MAX, Some(1)));
    }
}
