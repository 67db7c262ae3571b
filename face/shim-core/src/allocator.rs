//! The source of this library's memory: the application's `malloc`, until the process ends.
//!
//! An application may call `exit` inside a signal handler, and the signal may have come while the thread was inside
//! `malloc` or `free`. The thread then holds a lock of the heap that it never releases, and would deadlock if it
//! allocated or freed anything more. So the thread that ends the process gets its memory from the kernel from then
//! on, and no thread frees anything any more: the process is about to end.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::alloc::System;

use crate::sys::{self, call};

/// The thread that ends the process: the address of its errno, which differs between threads; 0 for none.
static ENDING: AtomicUsize = AtomicUsize::new(0);

/// The unused part of the memory that the ending thread got from the kernel. Used by that thread only.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// Bytes that the ending thread has got from the kernel.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Least number of bytes of one request to the kernel.
const PORTION_BYTES: usize = 1 << 20;

/// Most bytes from the kernel in all. The last batches of all links are smaller; beyond it, memory comes from the heap.
const BYTES_MAX: usize = 256 << 20;

/// The allocator of the preload library.
pub struct Allocator;

/// Records that the calling thread ends the process.
pub(crate) fn end() {
    ENDING.store(this_thread(), Ordering::Relaxed);
}

fn this_thread() -> usize {
    sys::errno_address() as usize
}

/// Whether some thread ends the process. Memory that it got from the kernel reaches other threads only through locks,
/// so that a thread with such memory sees this, too.
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
            // SAFETY: the caller's promises; all memory is from `System` so far.
            unsafe { System.dealloc(memory, layout) };
        }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !is_ending() {
            // SAFETY: the caller's promises; all memory is from `System` so far.
            return unsafe { System.realloc(memory, layout, size) };
        }
        // SAFETY: the caller promises that the new size does not overflow, and that the old memory is as long as its
        // layout says.
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

    /// One test for everything, because the state is the process's.
    #[test]
    fn the_thread_that_ends_the_process_has_memory_of_its_own() {
        let layout = |size, align| Layout::from_size_align(size, align).unwrap();
        // SAFETY: each call gets the layout of its memory, and memory is used within its size.
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
                // More than the bound on memory from the kernel.
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
