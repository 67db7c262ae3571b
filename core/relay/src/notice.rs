//! Decisions of the relay that the host writes to the log.

use alloc::collections::VecDeque;
use core::net::SocketAddr;
use core::time::Duration;

use spillway_batch::KeyId;

use crate::reasons::{LinkDown, Refusal, ResetReason};

/// A decision of the relay for the log. `service` is the service's index in this relay; `link` is the link's number
/// among the links of its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields with the same name have the same meaning in all notices")]
pub enum Notice {
    /// A link to the server is authenticated and accepts clients.
    LinkUp {
        service: u16,
        link: u16,
        /// Limit of the server on the link's clients.
        connections_max: u32,
    },
    /// A link to the server is down, and its clients were reset.
    LinkDown {
        service: u16,
        link: u16,
        why: LinkDown,
        /// Number of clients that were reset.
        clients: u32,
        /// Delay before the link is opened again. `None`: never, because the link was replaced.
        retry_in: Option<Duration>,
    },
    /// The server rejected a key, and the next older one is tried.
    KeyRefused { service: u16, link: u16, key: KeyId },
    /// A retired link was closed: its last client has left, or its deadline has passed.
    LinkRetired {
        service: u16,
        link: u16,
        /// Number of clients that were reset at the deadline.
        clients: u32,
    },
    /// A client was rejected.
    ClientRefused { service: u16, client: SocketAddr, why: Refusal },
    /// A client was reset.
    ClientReset { service: u16, client: SocketAddr, why: ResetReason },
    /// The server drains this link: the relay assigns no new clients to it.
    ServerDrains {
        service: u16,
        link: u16,
        /// Time until the server closes the connections of the link, in milliseconds.
        deadline_ms: u32,
    },
    /// The load was too high, and library clients were sent to other helpers.
    Shed {
        /// Number of clients that were sent *drain*.
        clients: u32,
        /// Load in percent of the thread's capacity.
        load_percent: u32,
    },
    /// Three quarters of the memory are in use: clients that do not read are paused, and later closed.
    MemoryScarce {
        /// Memory in use, in bytes.
        held: usize,
        /// The bound, in bytes.
        limit: usize,
        /// Connected clients.
        clients: u32,
    },
    /// At most five eighths of the memory are in use again.
    MemoryEnough {
        /// Memory in use, in bytes.
        held: usize,
        /// The bound, in bytes.
        limit: usize,
        /// Clients that were paused while memory was scarce.
        paused: u64,
        /// Clients that were closed while memory was scarce.
        closed: u64,
    },
    /// A service's drain deadline passed, and its remaining clients were reset.
    DrainDeadline {
        service: u16,
        /// Number of clients that were reset.
        clients: u32,
    },
}

/// Queue of notices for the host. When the queue is full, new notices are dropped and counted.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    queue: VecDeque<Notice>,
    dropped: u64,
}

impl Notices {
    const MAX: usize = 256;

    pub(crate) fn push(&mut self, notice: Notice) {
        if self.queue.len() < Notices::MAX {
            self.queue.push_back(notice);
        } else {
            self.dropped += 1;
        }
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(crate) fn pop(&mut self) -> Option<Notice> {
        self.queue.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_notices_are_dropped_at_the_bound() {
        let mut notices = Notices::default();
        for clients in 0..300 {
            notices.push(Notice::DrainDeadline { service: 0, clients });
        }
        assert_eq!(
            notices.pop(),
            Some(Notice::DrainDeadline { service: 0, clients: 0 }),
            "the oldest notice should be kept"
        );
        assert_eq!(notices.dropped, 300 - Notices::MAX as u64);
    }
}
