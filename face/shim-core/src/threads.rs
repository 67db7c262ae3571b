//! State that a thread keeps between two calls: whether it runs an event loop, and which links it has to flush.

use core::cell::Cell;

/// Links that one thread may leave unflushed until its ready list is empty; further ones are flushed at once.
const DIRTY_MAX: usize = 16;

struct State {
    runs_loop: Cell<bool>,
    dirty: [Cell<u32>; DIRTY_MAX],
    count: Cell<usize>,
}

thread_local! {
    // Constant and without a destructor: access is a plain load, at any time in a thread's life.
    static STATE: State = const {
        State { runs_loop: Cell::new(false), dirty: [const { Cell::new(0) }; DIRTY_MAX], count: Cell::new(0) }
    };
}

/// Records that the calling thread runs an event loop.
pub(crate) fn runs_loop() {
    STATE.with(|state| state.runs_loop.set(true));
}

/// Leaves a link with something to send for this thread's next flush. `false`: there will be none, so flush it now.
pub(crate) fn defer(link: u32) -> bool {
    STATE.with(|state| {
        if !state.runs_loop.get() {
            return false;
        }
        let count = state.count.get();
        // Nearly always the same link again.
        if state.dirty[..count].iter().any(|dirty| dirty.get() == link) {
            return true;
        }
        let Some(slot) = state.dirty.get(count) else { return false };
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
        state.dirty.get(left).map(Cell::get)
    })
}
