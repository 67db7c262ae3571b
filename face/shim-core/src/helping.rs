//! Helping can be turned off and on while the server runs. While helping is off, no new links are accepted, and
//! existing links drain until a deadline.
//!
//! Every process that may write the status page may turn helping off and on. The application's calls reach the library
//! whether helping is on or off.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Mutex;

use spillway_transport::Time;

use crate::status::{self, State};
use crate::wakes::Wakes;
use crate::{links, lock, log, port, sys};

/// The links' deadline while helping is off; `None` while it is on. Locked before links, and until a change is
/// complete, so that the status page shows the last change.
static DEADLINE: Mutex<Option<Time>> = Mutex::new(None);

/// Whether helping is off while links are still open.
static DRAINING: AtomicBool = AtomicBool::new(false);

/// Whether helping is off, so that no links are accepted.
pub(crate) fn is_off() -> bool {
    lock(&DEADLINE).is_some()
}

/// Whether helping is off while links are still open, so that waits must be short.
#[inline]
pub(crate) fn is_draining() -> bool {
    DRAINING.load(Ordering::Relaxed)
}

/// Turns helping off: accepts no more links, and ends the existing links within this time. Call with no lock held.
pub(crate) fn turn_off(within_ms: u32) {
    let mut current = lock(&DEADLINE);
    let deadline = sys::now() + Duration::from_millis(within_ms.into());
    let was_off = current.replace(deadline).is_some();
    let mut wakes = Wakes::default();
    let links = links::drain(within_ms, &mut wakes);
    if !was_off {
        log::line(format_args!("switched off: no new links; {links} open links end within {within_ms} ms"));
    }
    status::set_state(State::Draining);
    end_links_locked(deadline, &mut wakes);
    drop(current);
    links::settle(&mut wakes);
}

/// A link was opened. If helping was turned off at the same time, [`turn_off`] has missed this link: makes it end, too.
pub(crate) fn link_opened() {
    if is_off() {
        DRAINING.store(true, Ordering::Release);
    }
}

/// Turns helping on: accepts links again, unless the link port is closed. Call with no lock held.
pub(crate) fn turn_on() {
    let mut current = lock(&DEADLINE);
    if current.take().is_some() {
        log::line(format_args!("switched on again"));
    }
    DRAINING.store(false, Ordering::Release);
    status::set_state(port::state());
}

/// While helping is off: ends links without connections, and after the deadline all links. Call with no lock held.
pub(crate) fn end_links(wakes: &mut Wakes) {
    if let Some(deadline) = *lock(&DEADLINE) {
        end_links_locked(deadline, wakes);
    }
}

/// Like [`end_links`], but with [`DEADLINE`] locked.
fn end_links_locked(deadline: Time, wakes: &mut Wakes) {
    let left = links::end_drained(sys::now() >= deadline, wakes);
    DRAINING.store(left > 0, Ordering::Release);
    if left == 0 {
        status::set_state(State::Off);
    }
}
