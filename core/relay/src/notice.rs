//! What deserves a line in the log.

use alloc::collections::VecDeque;
use core::net::SocketAddr;
use core::time::Duration;

use spillway_batch::KeyId;

use crate::reasons::{Cut, LinkDown, Refusal};

/// One decision of the relay. `service` is the index in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A link to the server is authenticated: clients are taken.
    LinkUp {
        /// Of which service.
        service: u16,
        /// Which of its links.
        link: u16,
        /// Clients that the server lets it carry.
        connections_max: u32,
    },
    /// A link to the server is down; its clients were reset.
    LinkDown {
        /// Of which service.
        service: u16,
        /// Which of its links.
        link: u16,
        /// Why.
        why: LinkDown,
        /// Clients that were on it.
        clients: u32,
        /// When it is opened again; never, if it was replaced.
        retry_in: Option<Duration>,
    },
    /// The server does not accept a key; an older one is tried.
    KeyRefused {
        /// Of which service.
        service: u16,
        /// Which of its links.
        link: u16,
        /// The key.
        key: KeyId,
    },
    /// A link that was replaced has ended, without loss.
    LinkRetired {
        /// Of which service.
        service: u16,
        /// Which of its links.
        link: u16,
    },
    /// A client was not taken.
    ClientRefused {
        /// By which service.
        service: u16,
        /// The client.
        client: SocketAddr,
        /// Why.
        why: Refusal,
    },
    /// A client was reset.
    ClientCut {
        /// Of which service.
        service: u16,
        /// The client.
        client: SocketAddr,
        /// Why.
        why: Cut,
    },
    /// The server asks for its connections to be moved away; no more clients are put on this link.
    ServerDrains {
        /// Of which service.
        service: u16,
        /// Which of its links.
        link: u16,
        /// Within this time, in milliseconds.
        deadline_ms: u32,
    },
    /// The load is too high: library clients were told to go to other helpers.
    Shed {
        /// How many.
        clients: u32,
        /// The load.
        load_percent: u32,
    },
    /// Three quarters of the memory are in use: clients that do not read are paused, later closed.
    MemoryScarce {
        /// Bytes in use.
        held: usize,
        /// The bound.
        limit: usize,
        /// Clients connected.
        clients: u32,
    },
    /// There is enough memory again.
    MemoryEnough {
        /// Bytes in use.
        held: usize,
        /// The bound.
        limit: usize,
        /// Clients that were paused meanwhile.
        paused: u64,
        /// Clients that were closed meanwhile.
        closed: u64,
    },
    /// A service's drain deadline passed: the clients that were left have been reset.
    DrainDeadline {
        /// Which service.
        service: u16,
        /// How many.
        clients: u32,
    },
}

/// Notices that nobody has taken yet: a bounded queue, whose newest are dropped when nobody takes any.
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

    /// Notices that were dropped because the host did not take them in time.
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
    fn the_queue_is_bounded() {
        let mut notices = Notices::default();
        for clients in 0..300 {
            notices.push(Notice::DrainDeadline { service: 0, clients });
        }
        assert_eq!(
            notices.pop(),
            Some(Notice::DrainDeadline { service: 0, clients: 0 }),
            "the oldest is kept"
        );
        assert_eq!(notices.dropped, 300 - Notices::MAX as u64);
    }
}
