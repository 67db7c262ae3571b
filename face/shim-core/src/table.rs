//! What each descriptor number refers to.

use core::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;

/// Descriptors from this number on are always real. Linux's default of `fs.nr_open`.
pub const DESCRIPTORS_MAX: usize = 1 << 20;

/// 4 MB of address space, of which only the pages of numbers in use take memory.
static TABLE: [AtomicU32; DESCRIPTORS_MAX] = [const { AtomicU32::new(0) }; DESCRIPTORS_MAX];

/// The highest number that was ever recorded.
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
    /// A real epoll set, which may hold virtual connections.
    Set(u32),
    /// A real listening TCP socket; the index of its stand-in.
    Listener(u32),
    /// A descriptor that this library has opened for itself.
    Library,
}

/// Whether calls on this descriptor go to libc unchanged. The fast path: one load.
#[inline]
pub fn is_real(fd: c_int) -> bool {
    // The cast turns a negative number into one above the table's length.
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
        4 => Entry::Library,
        _ => Entry::Real,
    }
}

/// Records what a descriptor refers to. `false` if its number is too large for the table.
pub(crate) fn record(fd: c_int, entry: Entry) -> bool {
    let Some(slot) = TABLE.get(fd as u32 as usize) else { return false };
    let value = match entry {
        Entry::Real => 0,
        Entry::Connection(index) => 1 << KIND_SHIFT | index & INDEX_MASK,
        Entry::Set(index) => 2 << KIND_SHIFT | index & INDEX_MASK,
        Entry::Listener(index) => 3 << KIND_SHIFT | index & INDEX_MASK,
        Entry::Library => 4 << KIND_SHIFT,
    };
    HIGHEST.fetch_max(fd as u32, Ordering::Relaxed);
    slot.store(value, Ordering::Release);
    true
}

/// A descriptor other than `fd` with this entry. Slow: scans the table.
pub(crate) fn other_descriptor(entry_of: Entry, fd: c_int) -> Option<c_int> {
    (0..=HIGHEST.load(Ordering::Relaxed) as c_int).find(|&other| other != fd && entry(other) == entry_of)
}

/// Descriptors in the range that are not real, with their entries. Slow: scans the table.
pub(crate) fn entries_in(range: core::ops::RangeInclusive<u32>) -> impl Iterator<Item = (c_int, Entry)> {
    let last = (*range.end()).min(HIGHEST.load(Ordering::Relaxed));
    (*range.start()..=last)
        .map(|fd| (fd as c_int, entry(fd as c_int)))
        .filter(|(_, entry)| *entry != Entry::Real)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_outside_the_table_are_real() {
        for fd in [-1, c_int::MIN, c_int::MAX, DESCRIPTORS_MAX as c_int] {
            assert!(is_real(fd));
            assert!(!record(fd, Entry::Library));
            assert_eq!(entry(fd), Entry::Real);
        }
    }

    #[test]
    fn entries_survive_a_round_trip() {
        let fd = DESCRIPTORS_MAX as c_int - 1;
        let all =
            [Entry::Connection(5), Entry::Set(7), Entry::Listener(INDEX_MASK), Entry::Library, Entry::Real];
        for kind in all {
            assert!(record(fd, kind));
            assert_eq!(entry(fd), kind);
            assert_eq!(is_real(fd), kind == Entry::Real);
        }
    }
}
