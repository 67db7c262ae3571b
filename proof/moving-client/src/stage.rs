//! The progress of a move.

use std::time::Instant;

use crate::event::Carrier;
use crate::watch::Slot;

/// A move in progress or prepared.
#[derive(Debug)]
pub(crate) struct Moving {
    pub(crate) to: Slot,
    pub(crate) target: Carrier,
    /// Whether the connection switches as soon as the carrier is ready; it sends nothing until then.
    pub(crate) switches_when_ready: bool,
    pub(crate) stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Connecting { deadline: Instant },
    Accepting { deadline: Instant },
    Prepared,
}

impl Moving {
    pub(crate) fn switches_when_ready(&self) -> bool {
        self.switches_when_ready
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Connecting { deadline } | Stage::Accepting { deadline } => Some(deadline),
            Stage::Prepared => None,
        }
    }
}
