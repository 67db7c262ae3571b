//! Timed work, done by the next thread that waits for events.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use spillway_transport::Time;

use crate::port::retry;
use crate::wakes::Wakes;
use crate::{handshakes, helping, helping_deadline, links, release, release_timer, sessions, sys};

/// When the links' timeouts were last checked, in nanoseconds.
static CHECKED_AT: AtomicU64 = AtomicU64::new(0);
/// Longest wait while links have timeouts.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Minimum interval between checks of the links' timeouts.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Whether links have timeouts: of handshakes, of reading, or of the links that drain while helping is off.
fn has_link_timeouts() -> bool {
    handshakes::any_pending() || helping_deadline::is_draining()
}

/// Whether [`run`] may have something to do.
#[inline]
pub(crate) fn is_due(now: Time) -> bool {
    has_link_timeouts() || sessions::is_due(now) || release_timer::is_due(now) || retry::is_due(now)
}

/// The longest time that a thread may wait; `None` for no limit.
pub(crate) fn due_within() -> Option<Duration> {
    let for_links = has_link_timeouts().then_some(WAIT_MAX);
    let due = [for_links, sessions::due_within(), release_timer::due_within(), retry::due_within()];
    due.into_iter().flatten().min()
}

/// Does the sessions' timed work, releases sessions, tries to open the link port again, checks the links'
/// timeouts at intervals, and ends links while helping is off. Call with no lock held.
pub(crate) fn run(wakes: &mut Wakes) {
    let now = sys::now();
    if sessions::is_due(now) {
        sessions::run_timed_work(now, wakes);
    }
    if release_timer::is_due(now) {
        release::run(now, wakes);
    }
    if retry::is_due(now) {
        retry::try_again(now);
    }
    if now.since(Time(CHECKED_AT.load(Ordering::Relaxed))) < CHECK_INTERVAL {
        return;
    }
    CHECKED_AT.store(now.as_nanos(), Ordering::Relaxed);
    links::handle_timeouts(now, wakes);
    helping::end_links(wakes);
}
