//! Why a link was lost.

use spillway_batch::LinkError;

use crate::log::Reason;
use crate::status::Counter;
use crate::sys::Errno;

/// Why a link was lost.
pub(crate) enum Lost {
    ClosedByPeer,
    EventLoopClosed,
    Socket(Errno),
    Broken(LinkError),
    SwitchedOff,
    /// The peer had not authenticated, and the link was closed for a newer one.
    Evicted,
}

impl Lost {
    /// The counter for a link that was lost before it was established.
    pub(super) fn refusal(&self) -> Counter {
        match self {
            Lost::Broken(LinkError::UnknownKey { .. } | LinkError::WrongProof) => Counter::LinkKey,
            Lost::Broken(LinkError::Version { .. }) => Counter::LinkVersion,
            Lost::Broken(LinkError::HandshakeTimeout) => Counter::LinkTimeout,
            Lost::SwitchedOff => Counter::LinkOff,
            Lost::Evicted => Counter::LinkEvicted,
            _ => Counter::LinkMalformed,
        }
    }
}

impl core::fmt::Display for Lost {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Lost::ClosedByPeer => f.write_str("closed by the peer"),
            Lost::EventLoopClosed => f.write_str("the server closed its event loop"),
            Lost::Socket(error) => Reason(*error).fmt(f),
            Lost::Broken(error) => error.fmt(f),
            Lost::SwitchedOff => f.write_str("switched off"),
            Lost::Evicted => f.write_str(
                "too many links have not authenticated yet: this link was dropped for a newer one",
            ),
        }
    }
}
