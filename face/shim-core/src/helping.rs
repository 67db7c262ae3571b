//! Helping can be turned off and on while the server runs. While helping is off, no new links are accepted, and
//! existing links drain until a deadline.
//!
//! Every process that may write the status page may turn helping off and on. The application's calls reach the library
//! whether helping is on or off.

use core::time::Duration;

use crate::helping_deadline::{self, Deadline};
use crate::status::{self, State};
use crate::wakes::Wakes;
use crate::{links, log, port, sys};

/// Turns helping off: accepts no more links, and ends the existing links within this time. Call with no lock held.
pub(crate) fn turn_off(within_ms: u32) {
    let mut deadline = helping_deadline::lock();
    let was_off = deadline.set(sys::now() + Duration::from_millis(within_ms.into()));
    let mut wakes = Wakes::default();
    let links = links::drain(within_ms, &mut wakes);
    if !was_off {
        log::line(format_args!("switched off: no new links; {links} open links end within {within_ms} ms"));
    }
    status::set_state(State::Draining);
    end_links_locked(&deadline, &mut wakes);
    drop(deadline);
    links::run_deferred(&mut wakes);
}

/// Turns helping on: accepts links again, unless the link port is closed. Call with no lock held.
pub(crate) fn turn_on() {
    let mut deadline = helping_deadline::lock();
    if deadline.clear() {
        log::line(format_args!("switched on again"));
    }
    status::set_state(port::state());
}

/// While helping is off: ends links without connections, and after the deadline all links. Call with no lock held.
pub(crate) fn end_links(wakes: &mut Wakes) {
    end_links_locked(&helping_deadline::lock(), wakes);
}

/// Like [`end_links`], but with the deadline locked.
fn end_links_locked(deadline: &Deadline, wakes: &mut Wakes) {
    let Some(ends_at) = deadline.get() else { return };
    let left = links::end_drained(sys::now() >= ends_at, wakes);
    deadline.set_draining(left > 0);
    if left == 0 {
        status::set_state(State::Off);
    }
}
