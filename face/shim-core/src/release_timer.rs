//! When the server next looks whether sessions may return ([`crate::release`]), and its mean service time since the
//! last look.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use spillway_policy::release::ReleaseSchedule;
use spillway_transport::Time;

use crate::{prepared, sys};

/// When the next look is due, in nanoseconds; `u64::MAX` while there are no sessions.
static NEXT: AtomicU64 = AtomicU64::new(u64::MAX);
/// Sum of the times from a batch's arrival to its replies since the last look, in nanoseconds, and the number of batches.
static SERVED_NS: AtomicU64 = AtomicU64::new(0);
static SERVED: AtomicU64 = AtomicU64::new(0);

/// A session has begun: schedules a look, unless one is scheduled.
pub(crate) fn begin() {
    if NEXT.load(Ordering::Relaxed) == u64::MAX && prepared::release_after().is_some() {
        are_due(sys::now() + ReleaseSchedule::interval());
    }
}

/// Schedules the next look.
pub(crate) fn are_due(at: Time) {
    NEXT.store(at.as_nanos(), Ordering::Relaxed);
}

/// No look is due until [`begin`].
pub(crate) fn none_is_due() {
    NEXT.store(u64::MAX, Ordering::Relaxed);
}

/// Whether it is time to look.
#[inline]
pub(crate) fn is_due(now: Time) -> bool {
    NEXT.load(Ordering::Relaxed) <= now.as_nanos()
}

/// Time to the next look: no wait may be longer.
pub(crate) fn due_within() -> Option<Duration> {
    let at = NEXT.load(Ordering::Relaxed);
    (at != u64::MAX).then(|| Time(at).since(sys::now()))
}

/// Records the time from a batch's arrival to its replies.
pub(crate) fn served(took: Duration) {
    let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    SERVED_NS.fetch_add(took_ns, Ordering::Relaxed);
    SERVED.fetch_add(1, Ordering::Relaxed);
}

/// The mean time of batches since the last call; `None` if there were none.
pub(crate) fn take_service() -> Option<Duration> {
    let (took_ns, served) = (SERVED_NS.swap(0, Ordering::Relaxed), SERVED.swap(0, Ordering::Relaxed));
    took_ns.checked_div(served).map(Duration::from_nanos)
}
