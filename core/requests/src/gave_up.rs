//! Why a connection is not measured any more.

use core::fmt;

/// Why a connection's latency is not measured any more. Its bytes go on as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GaveUp {
    /// A request or a reply is not of the protocol.
    Syntax,
    /// A command that is not known here, so that its reply is not either.
    UnknownCommand,
    /// A reply came that nothing known asked for.
    Unasked,
    /// A reply could belong to one of several requests.
    Ambiguous,
    /// The connection became one on which the server speaks by itself: a subscriber, a watcher, a replica.
    Stream,
    /// The client switched replies off.
    RepliesOff,
    /// More requests wait than are kept in mind.
    TooManyOutstanding,
    /// A reply is nested deeper than is followed.
    TooDeep,
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GaveUp::Syntax => "it does not speak the configured protocol",
            GaveUp::UnknownCommand => "it sent a command that is not known here",
            GaveUp::Unasked => "a reply came that no request was known for",
            GaveUp::Ambiguous => "a reply could belong to one of several requests",
            GaveUp::Stream => "the server speaks by itself on it (subscriptions, watching, replication)",
            GaveUp::RepliesOff => "the client switched replies off",
            GaveUp::TooManyOutstanding => "too many requests were outstanding at one time",
            GaveUp::TooDeep => "a reply was nested too deeply",
        })
    }
}
