//! Where encrypted links' records are opened: one place for each thread.

use std::cell::Cell;

use spillway_batch::Scratch;

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// Lends the thread's scratch.
pub(crate) fn with<R>(use_it: impl FnOnce(&mut Scratch) -> R) -> R {
    // While a thread ends there is none any more.
    let mut scratch = SCRATCH.try_with(Cell::take).unwrap_or_default();
    let outcome = use_it(&mut scratch);
    let _ = SCRATCH.try_with(|place| place.set(scratch));
    outcome
}
