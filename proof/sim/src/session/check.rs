//! What the books look at, and what they have found.

use std::fmt;

use serde::Serialize;

/// One thing that must be true of every session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The server's application gets the bytes that the client's wrote: each once, in order, unaltered.
    Requests,
    /// And the client's application those of the server's.
    Replies,
    /// An end that is told comes after the last byte.
    Ends,
    /// A session goes on only with a higher epoch, and only in the life that its client knows.
    Epochs,
    /// *Gone* is told only when no server knows the session, nor remembers that it has received all of it and that both
    /// ends have closed; with the offset that was acknowledged.
    Gone,
    /// A session that its client has closed is over in order only when the server has received all that was written.
    Closes,
    /// Nobody keeps more than its bound.
    Memory,
    /// When the weather is calm every session comes to an end.
    Liveness,
    /// And leaves nothing behind.
    Leftovers,
    /// Nobody breaks a rule of the protocol or of the boundary to the network.
    Rules,
}

impl Check {
    /// All of them.
    pub const ALL: [Check; 10] = [
        Check::Requests,
        Check::Replies,
        Check::Ends,
        Check::Epochs,
        Check::Gone,
        Check::Closes,
        Check::Memory,
        Check::Liveness,
        Check::Leftovers,
        Check::Rules,
    ];
}

/// Something that must not have been.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Of what.
    pub check: Check,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.check, self.what)
    }
}
