//! Decides when a connection of a host moves from one stack to another.

use std::collections::BTreeMap;

use spillway_transport::Conn;
use spillway_wire::state::ConnectionState;

use super::planted_fault::PlantedFault;
use crate::rng::Rng;

/// One move in eight is checked, because a check costs two more moves.
const CHECK_ONE_IN: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Never,
    /// After every frame of the connection.
    Always,
    /// After this many frames of a thousand, a random connection.
    Sometimes(u64),
}

#[derive(Debug)]
pub(crate) struct Moves {
    when: When,
    rng: Rng,
    planted: Option<PlantedFault>,
    /// Moves left before the planted fault strikes.
    moves_until_fault: u32,
    pub(crate) made: u64,
    /// Moves that the target stack refused for lack of room.
    pub(crate) refused: u64,
}

impl Moves {
    pub(crate) fn new(when: When, rng: Rng, planted: Option<PlantedFault>, moves_until_fault: u32) -> Moves {
        Moves { when, rng, planted, moves_until_fault, made: 0, refused: 0 }
    }

    /// Stops all moves: a connection that keeps moving loses its probe count, and never detects a dead peer.
    pub(crate) fn end(&mut self) {
        self.when = When::Never;
    }

    pub(super) fn have_ended(&self) -> bool {
        self.when == When::Never
    }

    /// The connection that moves after a frame, if any. `of_frame` returns the frame's connection.
    pub(super) fn pick<P>(
        &mut self,
        of_frame: impl FnOnce() -> Option<Conn>,
        all: &BTreeMap<Conn, P>,
    ) -> Option<Conn> {
        match self.when {
            When::Never => None,
            When::Always => of_frame(),
            When::Sometimes(per_1000) if !all.is_empty() && self.rng.chance(per_1000, 1000) => {
                let index = self.rng.below(all.len() as u64) as usize; // fits: an index
                all.keys().nth(index).copied()
            }
            When::Sometimes(_) => None,
        }
    }

    /// Distance in stacks to the target. 0 is the same stack, which [`When::Always`] excludes.
    pub(super) fn step(&mut self, stacks: usize) -> usize {
        self.rng.range(u64::from(self.when == When::Always), stacks as u64 - 1) as usize // fits: below `stacks`
    }

    /// Plants the fault in the state of a moving connection, from move number `moves_until_fault` on.
    pub(super) fn alter(&mut self, state: &mut ConnectionState) {
        let Some(planted) = self.planted else { return };
        self.moves_until_fault = self.moves_until_fault.saturating_sub(1);
        if self.moves_until_fault == 0 {
            planted.alter(state);
        }
    }

    /// Whether to compare the states of a move, which detects one planted fault: [`PlantedFault::ForgetSack`].
    pub(super) fn is_check_due(&mut self) -> bool {
        match self.planted {
            Some(planted) => planted == PlantedFault::ForgetSack,
            None => self.rng.chance(1, CHECK_ONE_IN),
        }
    }
}
