//! What all parts of the experiment count, and the checks that fail it.

use crate::results::Check;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Moves that were ordered and have ended as such.
    pub(super) moves: u64,
    /// Moves whose steps at both ends are known.
    pub(super) joined: u64,
    /// Moves one after the other: their steps should be known.
    pub(super) traced: u64,
    /// Orders that did not move their connection, and were repeated.
    pub(super) repeated: u64,
    pub(super) busy_moves: u64,
    pub(super) replies: u64,
    pub(super) wrong: u64,
    /// Clients whose connection ended early, and connections that the servers have lost or let go.
    pub(super) lost: u64,
    /// Requests that took longer than [`TIMEOUT_US`](super::TIMEOUT_US).
    pub(super) late: u64,
    /// Retransmission timeouts of the clients' kernel.
    pub(super) timeouts: u64,
}

impl Counts {
    pub(super) fn checks(&self) -> Vec<Check> {
        if self.moves == 0 {
            return Vec::new();
        }
        let Counts { moves, joined, traced, repeated, replies, .. } = self;
        let of = format!("{replies} replies and {moves} moves; {repeated} orders were repeated");
        vec![
            Check::none("wrong", self.wrong, &of),
            Check::none("lost", self.lost, &of),
            Check::none("retransmission timeouts", self.timeouts + self.late, &of),
            Check::new(
                "steps",
                // A move whose *accepted* was lost ends at its source without its last steps.
                joined * 100 >= traced * 99,
                format!("all steps of {joined} of {traced} moves are known"),
            ),
        ]
    }
}
