//! One move of a connection: its [`source`] has the connection, its [`target`] imports it.

pub(crate) mod source;
pub(crate) mod target;

use core::time::Duration;

use spillway_wire::switch::{FlowState, Status};

/// What an answer says about a flow's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) status: Status,
    pub(crate) state: FlowState,
    pub(crate) generation: u64,
    /// Whether the entry's owner is the receiver of the answer.
    pub(crate) is_ours: bool,
}

/// Times of moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveTimes {
    /// Interval of retransmissions.
    pub retry: Duration,
    /// After this time the switch ends a move that is not confirmed: 1 ms to 60 s.
    pub lifetime: Duration,
}

impl MoveTimes {
    /// The lifetime in messages.
    pub(crate) fn lifetime_ms(&self) -> u32 {
        u32::try_from(self.lifetime.as_millis()).unwrap_or(u32::MAX)
    }
}
