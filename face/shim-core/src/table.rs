//! What each descriptor number refers to.

use core::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;

/// Numbers from here on are always real. Linux's default `fs.nr_open`.
pub const DESCRIPTORS_MAX: usize = 1 << 20;

/// 4 MB of address space; only pages of numbers in use become memory.
static TABLE: [AtomicU32; DESCRIPTORS_MAX] = [const { AtomicU32::new(0) }; DESCRIPTORS_MAX];

/// The highest descriptor that was ever noted.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

const KIND_SHIFT: u32 = 28;
const INDEX_MASK: u32 = (1 << KIND_SHIFT) - 1;

/// What a descriptor refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Not handled by this library.
    Real,
    /// A virtual connection.
    Connection(u32),
    /// A real epoll set that may hold virtual connections.
    Set(u32),
    /// A real listening TCP socket, whose connection entry stands for the accept queue.
    Listener(u32),
    /// A descriptor of this library, which the application does not know.
    Own,
}

/// Whether the call can go to libc unchanged. The fast path: one load.
#[inline]
pub fn is_real(fd: c_int) -> bool {
    // A negative number becomes a large one.
    match TABLE.get(fd as u32 as usize) {
        Some(slot) => slot.load(Ordering::Relaxed) == 0,
        None => true,
    }
}

pub(crate) fn entry(fd: c_int) -> Entry {
    let Some(slot) = TABLE.get(fd as u32 as usize) else { return Entry::Real };
    let value = slot.load(Ordering::Acquire);
    let index = value & INDEX_MASK;
    match value >> KIND_SHIFT {
        1 => Entry::Connection(index),
        2 => Entry::Set(index),
        3 => Entry::Listener(index),
        4 => Entry::Own,
        _ => Entry::Real,
    }
}

/// Records what a descriptor refers to. `false` if its number is too large for the table.
pub(crate) fn note(fd: c_int, entry: Entry) -> bool {
    let Some(slot) = TABLE.get(fd as u32 as usize) else { return false };
    let value = match entry {
        Entry::Real => 0,
        Entry::Connection(index) => 1 << KIND_SHIFT | index & INDEX_MASK,
        Entry::Set(index) => 2 << KIND_SHIFT | index & INDEX_MASK,
        Entry::Listener(index) => 3 << KIND_SHIFT | index & INDEX_MASK,
        Entry::Own => 4 << KIND_SHIFT,
    };
    HIGHEST.fetch_max(fd as u32, Ordering::Relaxed);
    slot.store(value, Ordering::Release);
    true
}

/// Another descriptor than `fd` with the same entry. Slow: it scans the table.
pub(crate) fn others(entry_of: Entry, fd: c_int) -> Option<c_int> {
    (0..=HIGHEST.load(Ordering::Relaxed) as c_int).find(|&other| other != fd && entry(other) == entry_of)
}

/// Descriptors in the range that are not real, with their entries. Slow: it scans the table.
pub(crate) fn noted(range: core::ops::RangeInclusive<u32>) -> impl Iterator<Item = (c_int, Entry)> {
    let last = (*range.end()).min(HIGHEST.load(Ordering::Relaxed));
    (*range.start()..=last)
        .map(|fd| (fd as c_int, entry(fd as c_int)))
        .filter(|(_, entry)| *entry != Entry::Real)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_the_table_are_real() {
        for fd in [-1, c_int::MIN, c_int::MAX, DESCRIPTORS_MAX as c_int] {
            assert!(is_real(fd));
            assert!(!note(fd, Entry::Own));
            assert_eq!(entry(fd), Entry::Real);
        }
    }

    #[test]
    fn entries_survive_a_round_trip() {
        let fd = DESCRIPTORS_MAX as c_int - 1;
        let all = [Entry::Connection(5), Entry::Set(7), Entry::Listener(INDEX_MASK), Entry::Own, Entry::Real];
        for kind in all {
            assert!(note(fd, kind));
            assert_eq!(entry(fd), kind);
            assert_eq!(is_real(fd), kind == Entry::Real);
        }
    }
}
