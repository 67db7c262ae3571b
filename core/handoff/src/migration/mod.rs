//! One move of a connection: its [`source`] has the connection, its [`target`] imports it.

pub(crate) mod source;
pub(crate) mod target;

use core::time::Duration;

use spillway_wire::switch::{FlowState, Status};

/// How often *prepare* and each part of a state are sent before the sender gives up.
pub(crate) const ATTEMPTS: u32 = 5;
/// Interval at which a server requests the outcome of a move from the switch, as a multiple of
/// [`MoveTimes::first_interval`]: 16 ms for a first interval of 1 ms.
const ASKING: u32 = 16;

/// The state of a flow's entry in an answer of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) status: Status,
    pub(crate) state: FlowState,
    pub(crate) generation: u64,
    /// Whether the entry's owner is the receiver of the answer.
    pub(crate) is_ours: bool,
}

/// Times of moves. The defaults are for servers in one rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveTimes {
    /// Time after which a message is sent again for the first time. The next intervals double.
    pub first_interval: Duration,
    /// A target that has received nothing of the state for this time gives the flow back.
    pub state_within: Duration,
    /// For this time after an export, packets that still arrive at the source are forwarded to the target.
    pub forward_for: Duration,
    /// After this time the switch ends a move that is not confirmed: 1 ms to 60 s.
    pub lifetime: Duration,
}

impl Default for MoveTimes {
    fn default() -> MoveTimes {
        MoveTimes {
            first_interval: Duration::from_millis(1),
            state_within: Duration::from_millis(100),
            forward_for: Duration::from_millis(100),
            lifetime: Duration::from_secs(1),
        }
    }
}

impl MoveTimes {
    /// The interval after attempt `number`, counted from 0: it doubles from one attempt to the next.
    pub(crate) fn interval(&self, number: u32) -> Duration {
        doubled(self.first_interval, number)
    }

    /// The time that all attempts take.
    pub(crate) fn all_attempts(&self) -> Duration {
        self.first_interval * ((1 << ATTEMPTS) - 1)
    }

    /// The interval at which a server in doubt repeats its request to the switch.
    pub(crate) fn asking(&self) -> Duration {
        self.first_interval * ASKING
    }

    /// The lifetime in messages.
    pub(crate) fn lifetime_ms(&self) -> u32 {
        u32::try_from(self.lifetime.as_millis()).unwrap_or(u32::MAX)
    }
}

/// The interval after attempt `number`, counted from 0, if the first one is `first`.
pub(crate) fn doubled(first: Duration, number: u32) -> Duration {
    first * (1 << number.min(ATTEMPTS - 1))
}
