//! Times of *reclaim*: when the switch has lost its entries, owners request their imported flows from the original owners.

use core::time::Duration;

/// An owner requests a flow for this time, from its first request on.
pub(crate) const RECLAIMS_FOR: Duration = Duration::from_secs(3);
/// Mean time between two requests of an owner, of all its flows together. All flows at once would overflow the buffers of the
/// servers' sockets: with a thousand flows none came back.
pub(crate) const RECLAIM_SPACING: Duration = Duration::from_micros(250);

/// The time in which an owner requests each of its flows once.
pub(crate) fn time_for_all(flows: usize) -> Duration {
    RECLAIM_SPACING.saturating_mul(u32::try_from(flows).unwrap_or(u32::MAX))
}
