//! Gated acknowledgements (PostMan §4.2): a helper does not acknowledge bytes before the server has received them.

use crate::seq::{FIRST, Seq};

/// The acknowledgement field of every segment is the lower of RCV.NXT and the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gate(Option<Seq>);

impl Gate {
    /// A gate at this sequence number; `None`: no gate.
    pub(super) fn new(at: Option<Seq>) -> Gate {
        Gate(at)
    }

    pub(super) fn position(&self) -> Option<Seq> {
        self.0
    }

    /// Opens the gate up to a stream offset; the stream's length plus one opens it for the FIN. The gate
    /// never moves back.
    pub(super) fn open(&mut self, through: u64) {
        if let Some(at) = &mut self.0 {
            *at = (*at).max(through.saturating_add(FIRST + 1));
        }
    }

    /// The acknowledgement field when everything before `next` has arrived.
    pub(super) fn limit(&self, next: Seq) -> Seq {
        self.0.map_or(next, |at| at.min(next))
    }
}
