//! The status page's earlier looks, which its rates are since.

use std::sync::{Arc, Mutex, PoisonError};

use crate::status::HelperStatus;

/// Snapshots nearer to each other than this are one look: two browsers do not spoil each other's rates.
const LOOK_MIN_MS: u64 = 500;

/// The look before the last, and the last.
#[derive(Debug, Default)]
pub(crate) struct Snapshots(Mutex<[Option<Arc<HelperStatus>>; 2]>);

impl Snapshots {
    /// Remembers a look. Returns one that is long enough ago.
    pub(crate) fn since(&self, status: &Arc<HelperStatus>) -> Option<Arc<HelperStatus>> {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ago = |look: &Option<Arc<HelperStatus>>| {
            look.as_ref().map(|look| status.uptime_ms.saturating_sub(look.uptime_ms))
        };
        if ago(&looks[1]).is_none_or(|ago| ago >= LOOK_MIN_MS) {
            let last = looks[1].replace(Arc::clone(status));
            looks[0] = last;
        }
        looks[0].clone()
    }
}
