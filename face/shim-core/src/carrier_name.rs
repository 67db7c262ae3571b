//! Names by which links and sessions refer to each other.

use spillway_batch::Id;

/// A session's carrier: the index of a link, and the id of a virtual connection on it.
pub(crate) type CarrierName = (u32, Id);

/// Names a session's place, which another session may have taken meanwhile: that one has another carrier and connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) shard: u8,
    pub(crate) slot: u32,
}
