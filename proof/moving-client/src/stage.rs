//! How far a move is.

use std::time::Instant;

use crate::event::Carrier;
use crate::watch::Slot;

/// A carrier that is being set up.
#[derive(Debug)]
pub(crate) struct Moving {
    pub(crate) to: Slot,
    pub(crate) target: Carrier,
    /// The move ends by itself; meanwhile nothing is sent.
    pub(crate) automatic: bool,
    pub(crate) stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Connecting { deadline: Instant },
    Accepting { deadline: Instant },
    Prepared,
}

impl Moving {
    pub(crate) fn is_automatic(&self) -> bool {
        self.automatic
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Connecting { deadline } | Stage::Accepting { deadline } => Some(deadline),
            Stage::Prepared => None,
        }
    }
}
