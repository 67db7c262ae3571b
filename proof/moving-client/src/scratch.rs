//! Buffers for each thread, in which records of encrypted links are received and decrypted.

use std::cell::Cell;
use std::thread::LocalKey;

use spillway_batch::Scratch;

/// Bytes that are received at once from an encrypted link: about one record.
const RECORD_BUFFER_BYTES: usize = 16 * 1024;

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
    static RECORDS: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

pub(crate) fn with<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    with_cell(&SCRATCH, work)
}

/// Lends an empty buffer with room for about one record.
pub(crate) fn with_record_buffer<R>(work: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    with_cell(&RECORDS, |buffer| {
        buffer.clear();
        buffer.reserve(RECORD_BUFFER_BYTES);
        work(buffer)
    })
}

fn with_cell<T: Default, R>(cell: &'static LocalKey<Cell<T>>, work: impl FnOnce(&mut T) -> R) -> R {
    // Thread-local storage is not available while a thread ends.
    let mut lent = cell.try_with(Cell::take).unwrap_or_default();
    let outcome = work(&mut lent);
    let _ = cell.try_with(|cell| cell.set(lent));
    outcome
}
