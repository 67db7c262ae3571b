//! A connection that is to come.

use spillway_capture::Restored;
use spillway_moves::ConnectionEnds;
use spillway_net::Detached;

/// A connection in a socket that has sent nothing yet.
#[derive(Debug)]
pub struct Coming {
    pub(crate) restored: Restored,
    pub(crate) detached: Detached,
    pub(crate) ends: ConnectionEnds,
}
