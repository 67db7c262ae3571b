//! State of a thread between two calls: whether it runs an event loop, and which links it has to flush.

use core::cell::Cell;

/// Maximum number of links that a thread defers until its ready list is empty. Further links are flushed at once.
const DEFERRED_MAX: usize = 16;

struct State {
    runs_event_loop: Cell<bool>,
    deferred: [Cell<u32>; DEFERRED_MAX],
    count: Cell<usize>,
}

thread_local! {
    // Constant and without a destructor: access is a plain load, at any time in a thread's life.
    static STATE: State = const {
        State {
            runs_event_loop: Cell::new(false),
            deferred: [const { Cell::new(0) }; DEFERRED_MAX],
            count: Cell::new(0),
        }
    };
}

pub(crate) fn set_runs_event_loop() {
    STATE.with(|state| state.runs_event_loop.set(true));
}

/// Defers a link's output to this thread's next flush. `false`: there is no event loop or no room, so the caller
/// flushes.
pub(crate) fn defer(link: u32) -> bool {
    STATE.with(|state| {
        if !state.runs_event_loop.get() {
            return false;
        }
        let count = state.count.get();
        // Usually the link was deferred already.
        if state.deferred[..count].iter().any(|deferred| deferred.get() == link) {
            return true;
        }
        let Some(slot) = state.deferred.get(count) else { return false };
        slot.set(link);
        state.count.set(count + 1);
        true
    })
}

/// Whether links wait for this thread's flush.
pub(crate) fn has_deferred() -> bool {
    STATE.with(|state| state.count.get() > 0)
}

/// Takes one link that waits for this thread's flush.
pub(crate) fn take_deferred() -> Option<u32> {
    STATE.with(|state| {
        let left = state.count.get().checked_sub(1)?;
        state.count.set(left);
        state.deferred.get(left).map(Cell::get)
    })
}
