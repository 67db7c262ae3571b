//! How links and sessions name each other.

use spillway_batch::Id;

/// What carries a session: a link, and a virtual connection on it.
pub(crate) type CarrierName = (u32, Id);

/// Names a session's place. It may be another session's by now: that one has another carrier, and another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) shard: u8,
    pub(crate) slot: u32,
}
