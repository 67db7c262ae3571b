//! When connections of a host leave one stack and go on in another.

use std::collections::BTreeMap;

use spillway_transport::Conn;
use spillway_wire::state::ConnectionState;

use super::canary::Canary;
use crate::rng::Rng;

/// What arrived is compared with what left once in so many moves: it costs two more.
const LOOK_ONE_IN: u64 = 8;

/// When connections move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Never,
    /// After every frame that is theirs.
    Always,
    /// Any one after a frame, so many times of a thousand.
    Sometimes(u64),
}

/// Moves of one host.
#[derive(Debug)]
pub(crate) struct Moves {
    when: When,
    rng: Rng,
    canary: Option<Canary>,
    /// Moves before it strikes.
    until: u32,
    /// Moves made.
    pub(crate) made: u64,
    /// The other stack had no room for it.
    pub(crate) refused: u64,
}

impl Moves {
    pub(crate) fn new(when: When, rng: Rng, canary: Option<Canary>, until: u32) -> Moves {
        Moves { when, rng, canary, until, made: 0, refused: 0 }
    }

    /// Nobody moves any more. A connection that moves for ever does not find out that its peer is gone: how often it has
    /// asked does not travel.
    pub(crate) fn end(&mut self) {
        self.when = When::Never;
    }

    pub(super) fn are_none(&self) -> bool {
        self.when == When::Never
    }

    /// Which connection moves after a frame of `framed`, if any does.
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

    /// How many stacks further a connection moves: 0, back to where it is, is possible unless connections always move.
    pub(super) fn step(&mut self, stacks: usize) -> usize {
        self.rng.range(u64::from(self.when == When::Always), stacks as u64 - 1) as usize // below their number
    }

    /// A state is on its way. Where the fault can only be made at some, it waits for one.
    pub(super) fn meddle(&mut self, state: &mut ConnectionState) {
        let Some(canary) = self.canary else { return };
        self.until = self.until.saturating_sub(1);
        if self.until == 0 {
            canary.alter(state);
        }
    }

    /// Whether a state is looked at that has arrived. Most planted faults others must find.
    pub(super) fn looks(&mut self) -> bool {
        match self.canary {
            Some(canary) => canary == Canary::ForgetSack,
            None => self.rng.chance(1, LOOK_ONE_IN),
        }
    }
}
