//! Why connections are lost without a violation.

use spillway_handoff::Cause;

/// Why a connection was lost without a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The protocol of moves gives the connection up in this case, by design.
    Protocol(Cause),
    /// A move of the connection has failed, because a fresh SYN had ended its entry: both ends had closed it.
    Closed,
    /// The server that had the connection has restarted.
    Server,
    /// The connection had ended at its server, which lost the flow before it could repeat its last segments.
    LastSegments,
}
