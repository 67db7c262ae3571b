//! Earlier snapshots of the status, for the rates on the status page.

use std::sync::{Arc, Mutex, PoisonError};

use crate::status::HelperStatus;

/// Minimum time between stored snapshots, so that several browsers do not shorten each other's intervals.
const INTERVAL_MIN_MS: u64 = 500;

/// The snapshot before the last one, and the last one.
#[derive(Debug, Default)]
pub(crate) struct Snapshots(Mutex<[Option<Arc<HelperStatus>>; 2]>);

impl Snapshots {
    /// Stores a snapshot. Returns an earlier one, from which rates are computed.
    pub(crate) fn since(&self, status: &Arc<HelperStatus>) -> Option<Arc<HelperStatus>> {
        let mut snapshots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let age_ms = snapshots[1].as_ref().map(|last| status.uptime_ms.saturating_sub(last.uptime_ms));
        if age_ms.is_none_or(|age_ms| age_ms >= INTERVAL_MIN_MS) {
            let last = snapshots[1].replace(Arc::clone(status));
            snapshots[0] = last;
        }
        snapshots[0].clone()
    }
}
