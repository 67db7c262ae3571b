use core::fmt;

/// Why the latency of a connection is not measured any more. Its bytes are forwarded as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A request or a reply breaks the syntax of the configured protocol.
    Syntax,
    /// The format of this command's reply is unknown.
    UnknownCommand,
    /// A reply arrived that does not match an outstanding request.
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

impl StopReason {
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
            StopReason::Syntax => 0,
            StopReason::UnknownCommand => 1,
            StopReason::UnsolicitedReply => 2,
            StopReason::Ambiguous => 3,
            StopReason::Stream => 4,
            StopReason::RepliesOff => 5,
            StopReason::TooManyOutstanding => 6,
            StopReason::TooDeep => 7,
        }
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StopReason::Syntax => "a request or a reply breaks the syntax of the configured protocol",
            StopReason::UnknownCommand => "the client sent an unknown command",
            StopReason::UnsolicitedReply => "the server sent a reply without a request",
            StopReason::Ambiguous => "a reply could belong to one of several requests",
            StopReason::Stream => {
                "the server sends data without requests (subscription, watch or replication)"
            }
            StopReason::RepliesOff => "the client switched replies off",
            StopReason::TooManyOutstanding => "more than 1024 groups of requests were outstanding",
            StopReason::TooDeep => "a reply was nested deeper than 64 levels",
        })
    }
}
