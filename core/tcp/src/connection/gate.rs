//! Gated acknowledgements (PostMan §4.2): what came is not acknowledged before somebody else has it.

use crate::seq::{FIRST, Seq};

/// The acknowledgement field of every segment is the lower of RCV.NXT and the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gate(Option<Seq>);

impl Gate {
    /// At this place; nothing: no gate.
    pub(super) fn new(at: Option<Seq>) -> Gate {
        Gate(at)
    }

    /// Where it is.
    pub(super) fn at(&self) -> Option<Seq> {
        self.0
    }

    /// Opens it up to a stream offset; one more than the stream's length opens it for the FIN. It never closes again.
    pub(super) fn open(&mut self, through: u64) {
        if let Some(at) = &mut self.0 {
            *at = (*at).max(through.saturating_add(FIRST + 1));
        }
    }

    /// What may be acknowledged of what has come.
    pub(super) fn limit(&self, next: Seq) -> Seq {
        self.0.map_or(next, |at| at.min(next))
    }
}
