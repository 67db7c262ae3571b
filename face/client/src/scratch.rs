//! One buffer for each thread, for the plaintext of encrypted links' records.

use std::cell::Cell;

use spillway_batch::Scratch;

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// Runs `body` with the thread's buffer.
pub(crate) fn with<R>(body: impl FnOnce(&mut Scratch) -> R) -> R {
    // The thread is ending and has dropped its buffer: use a new one.
    let mut scratch = SCRATCH.try_with(Cell::take).unwrap_or_default();
    let outcome = body(&mut scratch);
    let _ = SCRATCH.try_with(|cell| cell.set(scratch));
    outcome
}
