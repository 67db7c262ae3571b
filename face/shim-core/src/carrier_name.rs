//! How links and sessions refer to each other.

use spillway_batch::Id;

/// A session's carrier: the index of a link, and the id of a virtual connection on it.
pub(crate) type CarrierName = (u32, Id);

/// The shard and slot of a session. Another session may use the slot later; that session has another carrier and
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionName {
    pub(crate) shard: u8,
    pub(crate) slot: u32,
}
