//! Timed work, done by the next thread that waits for events.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use spillway_transport::Time;

use crate::port::retry;
use crate::wakes::Wakes;
use crate::{handshakes, links, release, release_timer, sessions, switch, sys};

/// When the links' timeouts were last checked, in nanoseconds.
static EXPIRED_AT: AtomicU64 = AtomicU64::new(0);
/// Longest wait while a peer has yet to authenticate, or links have yet to end.
const LOOKING_WAIT: Duration = Duration::from_secs(1);
/// Interval between checks of the links' timeouts.
const EXPIRY_INTERVAL: Duration = Duration::from_millis(100);

/// Whether links have timeouts: of handshakes, of reading, or of the off switch.
fn is_watching() -> bool {
    handshakes::are_there() || switch::is_draining()
}

/// Whether [`look`] may have something to do.
#[inline]
pub(crate) fn is_due(now: Time) -> bool {
    is_watching() || sessions::is_due(now) || release_timer::is_due(now) || retry::is_due(now)
}

/// The longest time that a thread may wait; `None` for any time.
pub(crate) fn due_within() -> Option<Duration> {
    let watching = is_watching().then_some(LOOKING_WAIT);
    let due = [watching, sessions::due_within(), release_timer::due_within(), retry::due_within()];
    due.into_iter().flatten().min()
}

/// Does the sessions' timed work, asks sessions to return, tries to open the link port again, checks the links'
/// timeouts at intervals, and ends links that were switched off. Call with no lock held.
pub(crate) fn look(wakes: &mut Wakes) {
    let now = sys::now();
    if sessions::is_due(now) {
        sessions::look(now, wakes);
    }
    if release_timer::is_due(now) {
        release::look(now, wakes);
    }
    if retry::is_due(now) {
        retry::look(now);
    }
    if now.since(Time(EXPIRED_AT.load(Ordering::Relaxed))) < EXPIRY_INTERVAL {
        return;
    }
    EXPIRED_AT.store(now.as_nanos(), Ordering::Relaxed);
    links::handle_timeouts(now, wakes);
    switch::end_links(wakes);
}
