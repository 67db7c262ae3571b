//! The checks of sessions, and their violations.

use std::fmt;

use serde::Serialize;

/// A property of every session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The server's application gets the bytes that the client's application wrote: each once, in order, unaltered.
    Requests,
    /// The client's application gets the bytes that the server's application wrote: each once, in order, unaltered.
    Replies,
    /// The end of a stream arrives after its last byte.
    Ends,
    /// A session continues only with a higher epoch, and only in the life that its client knows.
    Epochs,
    /// A server answers *gone* only if it does not know the session and has no record that it received every byte and
    /// both ends closed; the client then reports the offset that was acknowledged.
    Gone,
    /// A session that its client closed is over in order only after the server received all that was written.
    Closes,
    /// Buffers and tables keep within their bounds.
    Memory,
    /// After the storm every session ends.
    Liveness,
    /// Ended sessions leave no connection, id or byte behind.
    Leftovers,
    /// No rule of the protocol or of the transport's contract is broken.
    Rules,
}

impl Check {
    /// All checks.
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

/// A violation of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The violated check.
    pub check: Check,
    /// What was observed.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.check, self.what)
    }
}
