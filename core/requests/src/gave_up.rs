use core::fmt;

/// Why the latency of a connection is not measured any more. Its bytes are forwarded as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GaveUp {
    /// A request or a reply breaks the syntax of the configured protocol.
    Syntax,
    /// The format of this command's reply is unknown.
    UnknownCommand,
    /// A reply arrived that no outstanding request can have.
    UnsolicitedReply,
    /// A reply could belong to one of several requests.
    Ambiguous,
    /// The server sends data without requests: the client subscribes, watches or replicates.
    Stream,
    /// The client switched replies off.
    RepliesOff,
    /// More than [`OUTSTANDING_MAX`](crate::OUTSTANDING_MAX) groups of requests wait for replies.
    TooManyOutstanding,
    /// A reply is nested deeper than 64 levels.
    TooDeep,
}

impl GaveUp {
    /// Names in status and metrics, by [`index`](Self::index).
    pub const LABELS: [&'static str; 8] = [
        "syntax",
        "unknown_command",
        "unasked",
        "ambiguous",
        "stream",
        "replies_off",
        "too_many_outstanding",
        "too_deep",
    ];

    /// The reason's place in [`LABELS`](Self::LABELS).
    pub fn index(self) -> usize {
        match self {
            GaveUp::Syntax => 0,
            GaveUp::UnknownCommand => 1,
            GaveUp::UnsolicitedReply => 2,
            GaveUp::Ambiguous => 3,
            GaveUp::Stream => 4,
            GaveUp::RepliesOff => 5,
            GaveUp::TooManyOutstanding => 6,
            GaveUp::TooDeep => 7,
        }
    }
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GaveUp::Syntax => "its bytes are not of the configured protocol",
            GaveUp::UnknownCommand => "the client sent an unknown command",
            GaveUp::UnsolicitedReply => "the server sent a reply without a request",
            GaveUp::Ambiguous => "a reply could belong to one of several requests",
            GaveUp::Stream => "the server sends data without requests (subscription, watch or replication)",
            GaveUp::RepliesOff => "the client switched replies off",
            GaveUp::TooManyOutstanding => "more than 1024 groups of requests were outstanding",
            GaveUp::TooDeep => "a reply was nested deeper than 64 levels",
        })
    }
}
