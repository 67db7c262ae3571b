//! The checks of sessions, and their violations.

use serde::Serialize;

use crate::violations;

/// A property of every session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The server's application receives the bytes that the client's application wrote: each once, in order, unaltered.
    Requests,
    /// The client's application receives the bytes that the server's application wrote: each once, in order, unaltered.
    Replies,
    /// The end of a stream arrives after its last byte.
    Ends,
    /// A session resumes only with a higher epoch, and only in the life that the client has accepted.
    Epochs,
    /// A server answers *gone* only if it has no such session, and no record that it received every byte and
    /// that both ends closed. The client then reports the acknowledged offset.
    Gone,
    /// A session that its client closed ends in order only after the server has received all bytes written.
    Closes,
    /// Buffers and tables stay within their bounds.
    Memory,
    /// Every session ends in the calm phase.
    Liveness,
    /// Ended sessions leave no connection, id or byte behind.
    Leftovers,
    /// All hosts keep to the protocol and to the transport's contract.
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
pub type Violation = violations::Violation<Check>;
