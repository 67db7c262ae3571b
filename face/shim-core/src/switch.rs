//! The runtime off switch: no new links, and the existing ones get some time to move their connections away.
//!
//! Every process that may write the status page may use it. All functions stay interposed, so that it can be switched
//! on again.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Mutex;

use spillway_transport::Time;

use crate::status::{self, State};
use crate::wakes::Wakes;
use crate::{links, lock, log, port, sys};

/// While off: when the links' time ends. Held while the switch acts, so that the status page shows the last order;
/// taken before all locks of links.
static OFF_AFTER: Mutex<Option<Time>> = Mutex::new(None);

/// Whether links have yet to end.
static DRAINING: AtomicBool = AtomicBool::new(false);

/// Whether the switch is off, so that no links are accepted.
pub(crate) fn is_off() -> bool {
    lock(&OFF_AFTER).is_some()
}

/// Whether links have yet to end, so that every wait must be short.
#[inline]
pub(crate) fn is_draining() -> bool {
    DRAINING.load(Ordering::Relaxed)
}

/// Accepts no more links, and ends the existing ones within this time. Call with no lock held.
pub(crate) fn off(within_ms: u32) {
    let mut off_after = lock(&OFF_AFTER);
    let deadline = sys::now() + Duration::from_millis(within_ms.into());
    let was_off = off_after.replace(deadline).is_some();
    let mut wakes = Wakes::default();
    let links = links::drain(within_ms, &mut wakes);
    if !was_off {
        log::line(format_args!(
            "switched off: no more links are taken, and those there are ({links}) end within {within_ms} ms"
        ));
    }
    status::set_state(State::Draining);
    end(deadline, &mut wakes);
    drop(off_after);
    links::settle(&mut wakes);
}

/// A link was opened. If the switch was turned off meanwhile, it has missed this link, which ends like the others.
pub(crate) fn opened() {
    if is_off() {
        DRAINING.store(true, Ordering::Release);
    }
}

/// Accepts links again, unless the link port is closed. Call with no lock held.
pub(crate) fn on() {
    let mut off_after = lock(&OFF_AFTER);
    if off_after.take().is_some() {
        log::line(format_args!("switched on again"));
    }
    DRAINING.store(false, Ordering::Release);
    status::set_state(port::state());
}

/// While off: ends links without connections, and all links once their time is over. Call with no lock held.
pub(crate) fn end_links(wakes: &mut Wakes) {
    if let Some(deadline) = *lock(&OFF_AFTER) {
        end(deadline, wakes);
    }
}

/// Like [`end_links`], with the switch's lock held.
fn end(deadline: Time, wakes: &mut Wakes) {
    let left = links::end_drained(sys::now() >= deadline, wakes);
    DRAINING.store(left > 0, Ordering::Release);
    if left == 0 {
        status::set_state(State::Off);
    }
}
