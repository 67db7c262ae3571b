//! Why connections are lost without a violation.

use spillway_handoff::Cause;

/// Why a connection was lost without a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// By design of the protocol of moves.
    Protocol(Cause),
    /// With the server that had it.
    Server,
    /// The connection had ended at its server, which lost the flow before it could repeat its last segments.
    LastSegments,
}
