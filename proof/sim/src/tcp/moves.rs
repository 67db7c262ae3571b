//! When a host's connections move from one stack to another.

use std::collections::BTreeMap;

use spillway_transport::Conn;
use spillway_wire::state::ConnectionState;

use super::canary::Canary;
use crate::rng::Rng;

/// One move in this many is checked: a check costs two more moves.
const CHECK_ONE_IN: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Never,
    /// After every frame of the connection.
    Always,
    /// A random connection, after this many frames of a thousand.
    Sometimes(u64),
}

#[derive(Debug)]
pub(crate) struct Moves {
    when: When,
    rng: Rng,
    canary: Option<Canary>,
    /// Moves before the planted fault strikes.
    until: u32,
    pub(crate) made: u64,
    /// Moves that the other stack refused for lack of room.
    pub(crate) refused: u64,
}

impl Moves {
    pub(crate) fn new(when: When, rng: Rng, canary: Option<Canary>, until: u32) -> Moves {
        Moves { when, rng, canary, until, made: 0, refused: 0 }
    }

    /// Stops all moves: a moving connection does not detect a dead peer, because its probe count does not move.
    pub(crate) fn end(&mut self) {
        self.when = When::Never;
    }

    pub(super) fn are_none(&self) -> bool {
        self.when == When::Never
    }

    /// The connection that moves after a frame of `framed`, if any.
    pub(super) fn pick<P>(
        &mut self,
        framed: impl FnOnce() -> Option<Conn>,
        all: &BTreeMap<Conn, P>,
    ) -> Option<Conn> {
        match self.when {
            When::Never => None,
            When::Always => framed(),
            When::Sometimes(in_1000) if !all.is_empty() && self.rng.chance(in_1000, 1000) => {
                let index = self.rng.below(all.len() as u64) as usize; // below its length
                all.keys().nth(index).copied()
            }
            When::Sometimes(_) => None,
        }
    }

    /// The distance in stacks to the target: 0, the same stack, is possible unless connections always move.
    pub(super) fn step(&mut self, stacks: usize) -> usize {
        self.rng.range(u64::from(self.when == When::Always), stacks as u64 - 1) as usize // below `stacks`
    }

    /// Alters a moving state for the planted fault, once `until` moves have passed.
    pub(super) fn alter(&mut self, state: &mut ConnectionState) {
        let Some(canary) = self.canary else { return };
        self.until = self.until.saturating_sub(1);
        if self.until == 0 {
            canary.alter(state);
        }
    }

    /// Whether to compare a moved state. With a planted fault only [`Canary::ForgetSack`] is detected here.
    pub(super) fn checks(&mut self) -> bool {
        match self.canary {
            Some(canary) => canary == Canary::ForgetSack,
            None => self.rng.chance(1, CHECK_ONE_IN),
        }
    }
}
