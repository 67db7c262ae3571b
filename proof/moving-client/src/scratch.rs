//! A scratch buffer for each thread, in which records of encrypted links are decrypted.

use std::cell::Cell;

use spillway_batch::Scratch;

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

pub(crate) fn with<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    // Thread-local storage is not available while a thread ends.
    let mut scratch = SCRATCH.try_with(Cell::take).unwrap_or_default();
    let outcome = work(&mut scratch);
    let _ = SCRATCH.try_with(|cell| cell.set(scratch));
    outcome
}
