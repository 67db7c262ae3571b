//! Whether helping is off, and until when its links drain.
//!
//! The link port reads this state, and [`crate::helping`] changes it.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use spillway_transport::Time;

/// The links' deadline while helping is off; `None` while it is on.
static DEADLINE: Mutex<Option<Time>> = Mutex::new(None);

/// Whether helping is off while links are still open.
static DRAINING: AtomicBool = AtomicBool::new(false);

/// Whether helping is off, so that no links are accepted.
pub(crate) fn is_off() -> bool {
    lock().get().is_some()
}

/// Whether helping is off while links are still open, so that waits must be short.
#[inline]
pub(crate) fn is_draining() -> bool {
    DRAINING.load(Ordering::Relaxed)
}

/// A link was opened. If helping was turned off at the same time, `helping::turn_off` has missed this link: makes it end,
/// too.
pub(crate) fn link_opened() {
    if is_off() {
        DRAINING.store(true, Ordering::Release);
    }
}

/// The links' deadline, locked. Lock it before links, and until a change is complete, so that the status page shows the
/// last change.
pub(crate) struct Deadline(MutexGuard<'static, Option<Time>>);

/// Locks the deadline.
pub(crate) fn lock() -> Deadline {
    Deadline(crate::lock(&DEADLINE))
}

impl Deadline {
    /// The deadline while helping is off; `None` while it is on.
    pub(crate) fn get(&self) -> Option<Time> {
        *self.0
    }

    /// Turns helping off until the links' deadline. Returns whether it was off already.
    pub(crate) fn set(&mut self, deadline: Time) -> bool {
        self.0.replace(deadline).is_some()
    }

    /// Turns helping on. Returns whether it was off.
    pub(crate) fn clear(&mut self) -> bool {
        let was_off = self.0.take().is_some();
        self.set_draining(false);
        was_off
    }

    /// Records whether links are still open while helping is off.
    pub(crate) fn set_draining(&self, has_links: bool) {
        DRAINING.store(has_links, Ordering::Release);
    }
}
