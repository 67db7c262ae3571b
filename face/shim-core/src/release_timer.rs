//! When the next sample of [`crate::release`] is due, and the mean service time since the last sample.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use spillway_policy::release::ReleaseSchedule;
use spillway_transport::Time;

use crate::{prepared, sys};

/// When the next sample is due, in nanoseconds; `u64::MAX` while there are no sessions.
static NEXT: AtomicU64 = AtomicU64::new(u64::MAX);
/// Since the last sample: the sum of batches' service times, from arrival to replies, and the number of batches.
static SERVICE_NS: AtomicU64 = AtomicU64::new(0);
static BATCHES: AtomicU64 = AtomicU64::new(0);

/// A session has begun: schedules a sample, unless one is scheduled.
pub(crate) fn session_began() {
    if NEXT.load(Ordering::Relaxed) == u64::MAX && prepared::release_after().is_some() {
        schedule(sys::now() + ReleaseSchedule::interval());
    }
}

pub(crate) fn schedule(at: Time) {
    NEXT.store(at.as_nanos(), Ordering::Relaxed);
}

/// Cancels the next sample; [`session_began`] schedules one again.
pub(crate) fn cancel() {
    NEXT.store(u64::MAX, Ordering::Relaxed);
}

#[inline]
pub(crate) fn is_due(now: Time) -> bool {
    NEXT.load(Ordering::Relaxed) <= now.as_nanos()
}

/// Time to the next sample, which bounds every wait.
pub(crate) fn due_within() -> Option<Duration> {
    let at = NEXT.load(Ordering::Relaxed);
    (at != u64::MAX).then(|| Time(at).since(sys::now()))
}

/// Records the time from a batch's arrival to its replies.
pub(crate) fn record_service_time(service_time: Duration) {
    let service_ns = u64::try_from(service_time.as_nanos()).unwrap_or(u64::MAX);
    SERVICE_NS.fetch_add(service_ns, Ordering::Relaxed);
    BATCHES.fetch_add(1, Ordering::Relaxed);
}

/// The mean service time of the batches since the last call; `None` without a batch.
pub(crate) fn take_mean_service_time() -> Option<Duration> {
    let (service_ns, batches) = (SERVICE_NS.swap(0, Ordering::Relaxed), BATCHES.swap(0, Ordering::Relaxed));
    service_ns.checked_div(batches).map(Duration::from_nanos)
}
