//! Decides when a connection of a host moves to another server, or is exported and imported in place.

use std::cell::Cell;

use spillway_transport::Conn;
use spillway_wire::state::ConnectionState;
use spillway_wire::switch::ServerId;

use super::names::Names;
use super::planted_fault::PlantedFault;
use crate::rng::Rng;

/// One move in eight is checked, because a check costs two more moves.
const CHECK_ONE_IN: u64 = 8;
/// In one export in five the state lacks what a kernel does not reveal.
const HIDE_ONE_IN: u64 = 5;
/// One answer in this many says that a connection may not leave now.
const BUSY_ONE_IN: u64 = 16;

/// How often connections move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Never,
    /// Each connection moves after each of its frames.
    Always,
    /// After this many of a thousand frames, a random connection moves.
    Sometimes(u64),
}

/// Draws the moves of a host, and counts them.
#[derive(Debug)]
pub(crate) struct Moves {
    when: When,
    /// Of this many moves that cannot go to another server, one takes place all the same: an export and an import in place.
    in_place_one_in: u64,
    rng: Rng,
    planted: Option<PlantedFault>,
    /// Moves left before the planted fault strikes.
    moves_until_fault: u32,
    /// Questions whether a connection may leave.
    asked: Cell<u64>,
    /// Exported connections.
    exported: u64,
    /// Connections that another server has imported.
    pub(crate) made: u64,
    /// Connections that were exported and came back, because the move had failed.
    pub(crate) returned: u64,
    /// Connections that were exported and imported in place.
    pub(crate) in_place: u64,
}

impl Moves {
    pub(crate) fn new(
        (when, in_place_one_in): (When, u64),
        rng: Rng,
        (planted, moves_until_fault): (Option<PlantedFault>, u32),
    ) -> Moves {
        let (exported, made, returned, in_place) = (0, 0, 0, 0);
        let asked = Cell::new(0);
        Moves {
            when,
            in_place_one_in,
            rng,
            planted,
            moves_until_fault,
            asked,
            exported,
            made,
            returned,
            in_place,
        }
    }

    /// Stops all moves. Each import resets the number of probes, so that a connection that keeps moving never detects a dead
    /// peer.
    pub(crate) fn end(&mut self) {
        self.when = When::Never;
    }

    pub(super) fn have_ended(&self) -> bool {
        self.when == When::Never
    }

    /// The connection that moves after a frame, if any. `of_frame` returns the frame's connection.
    pub(super) fn pick(&mut self, of_frame: impl FnOnce() -> Option<Conn>, all: &Names) -> Option<Conn> {
        match self.when {
            When::Never => None,
            When::Always => of_frame(),
            When::Sometimes(per_1000) if all.len() > 0 && self.rng.chance(per_1000, 1000) => {
                let index = self.rng.below(all.len() as u64) as usize; // fits: an index
                all.nth(index)
            }
            When::Sometimes(_) => None,
        }
    }

    /// Draws whether a service's connection moves to another server. Otherwise it is exported and imported in place.
    pub(super) fn leaves(&mut self) -> bool {
        self.in_place_one_in > 1 || self.rng.chance(1, 2)
    }

    /// Draws whether a connection that does not leave is exported and imported in place.
    pub(super) fn rebuilds(&mut self) -> bool {
        self.in_place_one_in == 1 || self.rng.chance(1, self.in_place_one_in)
    }

    /// The server to which a connection moves, of `others`; `None`: the switch chooses.
    pub(super) fn target(&mut self, others: &[ServerId]) -> Option<ServerId> {
        let is_named = !others.is_empty() && self.rng.chance(1, 2);
        is_named.then(|| self.rng.pick(others))
    }

    /// Whether a connection may leave. In random worlds one answer in sixteen is that a request is in execution.
    pub(super) fn is_at_safe_point(&self) -> bool {
        self.asked.set(self.asked.get() + 1);
        self.when == When::Never || !self.asked.get().is_multiple_of(BUSY_ONE_IN)
    }

    /// Hides what a kernel does not reveal, in some moves. Before the peer has sent anything, it may still wait for the
    /// end of a handshake with a SYN cookie, which must echo the peer's timestamp.
    pub(super) fn hide(&mut self, state: &mut ConnectionState) {
        self.exported += 1;
        if state.receiving.next > 1 && self.exported.is_multiple_of(HIDE_ONE_IN) {
            state.sending.window_update = None;
            if let Some(stamps) = &mut state.agreed.stamps {
                (stamps.recent, stamps.recent_age_ns) = (None, 0);
            }
        }
    }

    /// Plants the fault in the state of a moving connection, from move number `moves_until_fault` on.
    pub(super) fn alter(&mut self, state: &mut ConnectionState) {
        let Some(planted) = self.planted else { return };
        self.moves_until_fault = self.moves_until_fault.saturating_sub(1);
        if self.moves_until_fault == 0 {
            planted.alter(state);
        }
    }

    /// Planted fault [`PlantedFault::KeepSource`]: whether the source continues the connection that it has exported.
    pub(super) fn keeps_source(&mut self) -> bool {
        if self.planted != Some(PlantedFault::KeepSource) {
            return false;
        }
        self.moves_until_fault = self.moves_until_fault.saturating_sub(1);
        self.moves_until_fault == 0
    }

    /// Whether this planted fault strikes now; it strikes at every opportunity.
    pub(super) fn has_planted(&self, planted: PlantedFault) -> bool {
        self.planted == Some(planted)
    }

    /// Whether to compare the states of a move, which detects one planted fault: [`PlantedFault::ForgetSack`].
    pub(super) fn is_check_due(&mut self) -> bool {
        match self.planted {
            Some(planted) => planted == PlantedFault::ForgetSack,
            None => self.rng.chance(1, CHECK_ONE_IN),
        }
    }
}
