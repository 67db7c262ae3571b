//! Tries again to open the link port, in the next thread that waits for events: the address may be held by a forked
//! child of a server that was killed, or an interface may not be up yet.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Mutex;

use spillway_transport::Time;

use super::open_in;
use crate::ready::{self, Set};
use crate::{lock, prepared, sys};

/// Time from the first failure to the next attempt; it doubles with each failure, up to [`WAIT_MAX`].
const WAIT_MIN: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(1);

/// `Some` while the port is to be opened again.
static RETRY: Mutex<Option<Retry>> = Mutex::new(None);
/// When the next attempt is due, in nanoseconds; `u64::MAX` for never.
static AT: AtomicU64 = AtomicU64::new(u64::MAX);

struct Retry {
    /// The epoll set that the port is to be watched in.
    set: u32,
    wait: Duration,
}

/// The port could not be opened: from now on, threads that wait in this set try again.
pub(super) fn begin(set: &Set) {
    // Threads that wait in the kernel return here only if the set is active. Without free descriptors, they do so
    // when the set is activated for another reason.
    let _ = set.activate();
    *lock(&RETRY) = Some(Retry { set: set.index, wait: WAIT_MIN });
    AT.store((sys::now() + WAIT_MIN).as_nanos(), Ordering::Release);
}

/// Whether the port is closed and to be opened again.
pub(crate) fn is_waiting() -> bool {
    AT.load(Ordering::Relaxed) != u64::MAX
}

/// Whether [`look`] has something to do.
#[inline]
pub(crate) fn is_due(now: Time) -> bool {
    AT.load(Ordering::Relaxed) <= now.as_nanos()
}

/// Time to the next attempt: no wait may be longer.
pub(crate) fn due_within() -> Option<Duration> {
    let at = AT.load(Ordering::Relaxed);
    (at != u64::MAX).then(|| Time(at).since(sys::now()))
}

/// Tries again if it is time. Call with no lock held.
pub(crate) fn look(now: Time) {
    let mut guard = lock(&RETRY);
    let (Some(retry), Some(config)) = (guard.as_mut().filter(|_| is_due(now)), prepared::config()) else {
        return;
    };
    let before = sys::errno();
    let opened = ready::get(retry.set).ok_or(libc::EBADF).and_then(|set| open_in(config, set));
    sys::set_errno(before);
    if opened.is_ok() {
        *guard = None;
        AT.store(u64::MAX, Ordering::Release);
    } else {
        retry.wait = (retry.wait * 2).min(WAIT_MAX);
        AT.store((now + retry.wait).as_nanos(), Ordering::Release);
    }
}

/// The application closes an epoll set. If the port was to be watched there, the next set into which the application
/// puts its listener takes that set's place.
pub(super) fn set_closed(set: &Set) {
    let mut guard = lock(&RETRY);
    if guard.as_ref().is_some_and(|retry| retry.set == set.index) {
        *guard = None;
        AT.store(u64::MAX, Ordering::Release);
        prepared::is_to_be_opened();
    }
}
