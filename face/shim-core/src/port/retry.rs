//! Retries opening the link port, in the next thread that waits for events: a forked child of a killed server may still
//! hold the address, or an interface may not be up yet.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Mutex;

use spillway_transport::Time;

use super::open_in;
use crate::epoll_set::{self, Set};
use crate::{lock, prepared, sys};

/// Time from the first failure to the next attempt. It doubles with each failure, up to [`WAIT_MAX`].
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

/// The port could not be opened: from now on, threads that wait in this set retry.
pub(super) fn begin(set: &Set) {
    // Only waits on an active set reach this library. If activation fails, retries begin once the set is active.
    let _ = set.activate();
    *lock(&RETRY) = Some(Retry { set: set.index, wait: WAIT_MIN });
    AT.store((sys::now() + WAIT_MIN).as_nanos(), Ordering::Release);
}

/// Whether the port is closed and to be opened again.
pub(crate) fn is_waiting() -> bool {
    AT.load(Ordering::Relaxed) != u64::MAX
}

/// Whether [`try_again`] has something to do.
#[inline]
pub(crate) fn is_due(now: Time) -> bool {
    AT.load(Ordering::Relaxed) <= now.as_nanos()
}

/// Time to the next attempt, which bounds every wait.
pub(crate) fn due_within() -> Option<Duration> {
    let at = AT.load(Ordering::Relaxed);
    (at != u64::MAX).then(|| Time(at).since(sys::now()))
}

/// Retries if an attempt is due. Call with no lock held.
pub(crate) fn try_again(now: Time) {
    let mut guard = lock(&RETRY);
    let (Some(retry), Some(config)) = (guard.as_mut().filter(|_| is_due(now)), prepared::config()) else {
        return;
    };
    let before = sys::errno();
    let opened = epoll_set::get(retry.set).ok_or(libc::EBADF).and_then(|set| open_in(config, set));
    sys::set_errno(before);
    if opened.is_ok() {
        *guard = None;
        AT.store(u64::MAX, Ordering::Release);
    } else {
        retry.wait = (retry.wait * 2).min(WAIT_MAX);
        AT.store((now + retry.wait).as_nanos(), Ordering::Release);
    }
}

/// The application closes an epoll set. If the port was to be watched there, the port is opened in the next set to
/// which the application adds the listener.
pub(super) fn handle_set_closed(set: &Set) {
    let mut guard = lock(&RETRY);
    if guard.as_ref().is_some_and(|retry| retry.set == set.index) {
        *guard = None;
        AT.store(u64::MAX, Ordering::Release);
        prepared::set_link_port_pending();
    }
}
