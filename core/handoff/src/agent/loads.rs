//! The loads of the other servers, as the switch's table of owners states them.

use alloc::collections::VecDeque;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::switch::{Answer, FlowState, Request, ServerId, Status};

use super::Agent;

/// Maximum number of owners that the agent asks for after a heartbeat; the next ones follow after the next heartbeat.
const LISTS_MAX: u64 = 8;
/// Maximum number of unanswered requests; the agent stops waiting for answers to older ones.
const WAITING_MAX: usize = 64;
/// Maximum number of loads that wait for [`Agent::poll_load`]; older ones are forgotten.
const LOADS_MAX: usize = 256;

/// The last heartbeat of another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLoad {
    /// The server.
    pub server: ServerId,
    /// Its load, in the unit of [`Agent::set_load`].
    pub load: u32,
    /// How many more connections it can import.
    pub free_places: u32,
    /// Time since the switch received the heartbeat, in whole milliseconds.
    pub age: Duration,
}

/// Requests for the table of owners, and what they have shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Loads {
    is_watched: bool,
    /// Number of the next owner to ask for.
    next_index: u64,
    /// Sequences of requests without an answer.
    waiting: VecDeque<u64>,
    loads: VecDeque<PeerLoad>,
}

impl Loads {
    /// Answers to earlier requests do not count any more.
    pub(super) fn forget_requests(&mut self) {
        self.waiting.clear();
    }

    fn record_sent(&mut self, sequence: u64) {
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(sequence);
    }

    /// Whether the agent waits for the answer with this sequence.
    fn take(&mut self, sequence: u64) -> bool {
        let index = self.waiting.iter().position(|waiting| *waiting == sequence);
        index.and_then(|index| self.waiting.remove(index)).is_some()
    }

    fn push(&mut self, load: PeerLoad) {
        if self.loads.len() == LOADS_MAX {
            self.loads.pop_front();
        }
        self.loads.push_back(load);
    }
}

impl Agent {
    /// From now on the agent asks the switch for the loads of the other servers after each heartbeat: *list* of
    /// `docs/wire.md`, for at most eight owners at a time.
    pub fn watch_loads(&mut self) {
        self.loads.is_watched = true;
    }

    /// The next load that the switch has stated. Call it until it returns `None`, after datagrams were handled.
    pub fn poll_load(&mut self) -> Option<PeerLoad> {
        self.loads.loads.pop_front()
    }

    pub(super) fn request_loads(&mut self, now: Time) {
        if !self.loads.is_watched {
            return;
        }
        let owners = self.settings.peers.len() as u64;
        for _ in 0..owners.min(LISTS_MAX) {
            let index = self.loads.next_index % owners;
            self.loads.next_index = index + 1;
            let service = self.settings.services[0].endpoint;
            let sequence = self.request(now, Request::List { service, index });
            self.loads.record_sent(sequence);
        }
    }

    pub(super) fn handle_listed(&mut self, sequence: u64, answer: &Answer) {
        if !self.loads.take(sequence) || answer.status != Status::Ok || answer.state != FlowState::Owned {
            return;
        }
        let server = answer.owner.and_then(|owner| self.server_with(owner.mac()));
        if let Some(server) = server.filter(|server| *server != self.settings.id) {
            let age = Duration::from_millis(u64::from(answer.lifetime_ms));
            let (load, free_places) = (answer.load, answer.free_places);
            self.loads.push(PeerLoad { server, load, free_places, age });
        }
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
