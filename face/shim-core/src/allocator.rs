//! Where this library's memory comes from: the application's `malloc`, until the process ends.
//!
//! An application may call `exit` inside a signal handler, and the signal may have come while the thread was inside
//! `malloc` or `free`. The thread then holds a lock of the heap that it never gives back, and would wait for itself if it
//! allocated or freed anything more. So the thread that ends the process gets its memory from the kernel from then on,
//! and nothing is freed any more, by any thread: the process is about to end.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::alloc::System;

use crate::sys::{self, call};

/// Which thread ends the process: the address of its errno, which no other thread has; 0 for none.
static ENDING: AtomicUsize = AtomicUsize::new(0);

/// The part that is free of the memory that the thread that ends the process has from the kernel. Used by it only.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// How much it has had from the kernel.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Taken from the kernel at once, at least.
const PORTION_BYTES: usize = 1 << 20;

/// Taken from the kernel in all. The last batches of all links are smaller; beyond it the heap is asked.
const BYTES_MAX: usize = 256 << 20;

/// The allocator of the preload library.
pub struct Allocator;

/// The calling thread ends the process.
pub(crate) fn end() {
    ENDING.store(this_thread(), Ordering::Relaxed);
}

fn this_thread() -> usize {
    sys::errno_address() as usize
}

/// Whether some thread ends the process. Memory that this thread got from the kernel reaches others by locks only, so that
/// they see this, too.
#[inline]
fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed) != 0
}

#[inline]
fn is_ending_here() -> bool {
    is_ending() && ENDING.load(Ordering::Relaxed) == this_thread()
}

// SAFETY: memory is from the system's allocator, or from mappings that stay, are zeroed, and are handed out once.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_ending_here() {
            return last(layout);
        }
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_ending_here() {
            return last(layout);
        }
        // SAFETY: the caller's promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if !is_ending() {
            // SAFETY: the caller's promises; nothing has come from elsewhere yet.
            unsafe { System.dealloc(memory, layout) };
        }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !is_ending() {
            // SAFETY: the caller's promises; nothing has come from elsewhere yet.
            return unsafe { System.realloc(memory, layout, size) };
        }
        // SAFETY: the caller promises that the new size is none that overflows, and that the old memory is as long as
        // its layout says.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                core::ptr::copy_nonoverlapping(memory, new, layout.size().min(size));
            }
            new
        }
    }
}

/// Memory that is zeroed and never freed.
#[cold]
fn last(layout: Layout) -> *mut u8 {
    let place = |next: usize| next.checked_next_multiple_of(layout.align());
    let fits = |next: usize| place(next)?.checked_add(layout.size());
    let next = NEXT.load(Ordering::Relaxed);
    if let (Some(start), Some(end)) = (place(next), fits(next))
        && next != 0
        && end <= END.load(Ordering::Relaxed)
    {
        NEXT.store(end, Ordering::Relaxed);
        return start as *mut u8;
    }
    let Some(portion) = layout.size().checked_add(layout.align()).map(|bytes| bytes.max(PORTION_BYTES))
    else {
        return null_mut();
    };
    let taken = TAKEN.load(Ordering::Relaxed).saturating_add(portion);
    if taken <= BYTES_MAX
        && let Ok(start) = map(portion)
    {
        TAKEN.store(taken, Ordering::Relaxed);
        END.store(start + portion, Ordering::Relaxed);
        NEXT.store(start, Ordering::Relaxed);
        return last(layout);
    }
    // SAFETY: as of `alloc`: the layout is the caller's.
    unsafe { System.alloc_zeroed(layout) }
}

fn map(bytes: usize) -> Result<usize, sys::Errno> {
    const NO_FILE: libc::c_int = -1;
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    call!(libc::SYS_mmap, 0, bytes, access, kind, NO_FILE, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All in one test: there is one end of a process.
    #[test]
    fn the_thread_that_ends_the_process_has_memory_of_its_own() {
        let layout = |size, align| Layout::from_size_align(size, align).unwrap();
        // SAFETY: layouts are as they were given, and memory is used within its size.
        unsafe {
            let before = Allocator.alloc(layout(100, 8));
            before.write_bytes(7, 100);
            let (own, heap) = {
                end();
                let mut all: Vec<(usize, usize)> = Vec::new();
                for (size, align) in [(1, 1), (100, 64), (3 << 20, 16), (5, 4096), (700_000, 8), (700_000, 8)]
                {
                    let memory = Allocator.alloc_zeroed(layout(size, align));
                    assert_eq!((memory.is_null(), memory as usize % align), (false, 0));
                    assert!(core::slice::from_raw_parts(memory, size).iter().all(|byte| *byte == 0));
                    memory.write_bytes(1, size);
                    all.push((memory as usize, size));
                }
                all.sort_unstable();
                assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{all:?}");
                let grown = Allocator.realloc(before, layout(100, 8), 200);
                assert_eq!(core::slice::from_raw_parts(grown, 100), [7; 100]);
                assert_eq!(core::slice::from_raw_parts(before, 100), [7; 100], "nothing is freed");
                let shrunk = Allocator.realloc(grown, layout(200, 8), 50);
                assert_eq!(core::slice::from_raw_parts(shrunk, 50), [7; 50]);
                let taken = TAKEN.load(Ordering::Relaxed);
                let other = std::thread::spawn(move || Allocator.alloc(layout(2 << 20, 8)) as usize);
                let other = other.join().unwrap();
                assert_eq!(TAKEN.load(Ordering::Relaxed), taken, "others have theirs from the heap");
                // More than there is for it.
                let large = Allocator.alloc(layout(BYTES_MAX, 8));
                (shrunk, [other as *mut u8, large])
            };
            assert!(TAKEN.load(Ordering::Relaxed) <= BYTES_MAX);
            Allocator.dealloc(own, layout(50, 8));
            ENDING.store(0, Ordering::Relaxed);
            Allocator.dealloc(before, layout(100, 8));
            Allocator.dealloc(heap[0], layout(2 << 20, 8));
            Allocator.dealloc(heap[1], layout(BYTES_MAX, 8));
        }
    }
}
