//! The runtime off switch: no new links, and those there are get some time to move their connections away.
//!
//! Whoever may write the status page may use it; nothing is interposed less meanwhile, so that it can be switched on
//! again.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use spillway_transport::Time;

use crate::ready::Wakes;
use crate::status::{self, State};
use crate::{links, log, sys};

/// 0 while on; otherwise the end of the time that links have, in nanoseconds.
static OFF_AFTER: AtomicU64 = AtomicU64::new(0);

/// Whether no links are taken.
pub(crate) fn is_off() -> bool {
    OFF_AFTER.load(Ordering::Acquire) != 0
}

/// Takes no more links, and ends those there are within this time. Call with no lock held.
pub(crate) fn off(within_ms: u32) {
    let deadline = sys::now() + Duration::from_millis(within_ms.into());
    let was_off = OFF_AFTER.swap(deadline.as_nanos().max(1), Ordering::AcqRel) != 0;
    let mut wakes = Wakes::default();
    let links = links::drain(within_ms, &mut wakes);
    if !was_off {
        log::line(format_args!(
            "switched off: no more links are taken, and those there are ({links}) end within {within_ms} ms"
        ));
    }
    status::set_state(State::Draining);
    end_links(&mut wakes);
    wakes.send();
}

/// Takes links again.
pub(crate) fn on() {
    if OFF_AFTER.swap(0, Ordering::AcqRel) != 0 {
        log::line(format_args!("switched on again"));
    }
    DRAINING.store(0, Ordering::Release);
    status::set_state(State::On);
}

/// Links that have yet to end.
static DRAINING: AtomicU64 = AtomicU64::new(0);

/// Whether links have yet to end, so that no wait must be long.
#[inline]
pub(crate) fn is_draining() -> bool {
    DRAINING.load(Ordering::Relaxed) > 0
}

/// Ends links without connections, and all of them once their time is over.
pub(crate) fn end_links(wakes: &mut Wakes) {
    let off_after = OFF_AFTER.load(Ordering::Acquire);
    if off_after == 0 {
        return;
    }
    let left = links::end_drained(sys::now() >= Time(off_after), wakes);
    DRAINING.store(left as u64, Ordering::Release);
    if left == 0 {
        status::set_state(State::Off);
    }
}
