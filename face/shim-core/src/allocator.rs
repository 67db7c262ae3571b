//! This library's allocator: the application's `malloc`, until the process ends.
//!
//! An application may call `exit` inside a signal handler, and the signal may have come while the thread was inside
//! `malloc` or `free`. The thread then holds a lock of the heap that it never releases, and would deadlock at the next
//! allocation. So from then on the thread that ends the process gets its memory from the kernel, and all threads leave
//! memory allocated: the process is about to end.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::alloc::System;

use crate::sys::{self, call};

/// The thread that ends the process: the address of its errno, which differs between threads; 0 for none.
static ENDING: AtomicUsize = AtomicUsize::new(0);

/// Begin and end of the unused memory that the ending thread has got from the kernel. Used by that thread only.
static UNUSED_BEGIN: AtomicUsize = AtomicUsize::new(0);
static UNUSED_END: AtomicUsize = AtomicUsize::new(0);
/// Bytes that the ending thread has got from the kernel.
static MAPPED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Minimum size of one request to the kernel.
const PORTION_BYTES: usize = 1 << 20;

/// Maximum number of bytes from the kernel: more than the last batches of all links. Beyond it, the heap is used.
const BYTES_MAX: usize = 256 << 20;

/// The allocator of the preload library.
pub struct Allocator;

/// Records that the calling thread ends the process.
pub(crate) fn set_ending() {
    ENDING.store(this_thread(), Ordering::Relaxed);
}

fn this_thread() -> usize {
    sys::errno_address() as usize
}

/// Whether some thread ends the process. Other threads get memory of the ending thread only through a lock, so they
/// also see this as true.
#[inline]
fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed) != 0
}

#[inline]
fn is_ending_here() -> bool {
    is_ending() && ENDING.load(Ordering::Relaxed) == this_thread()
}

// SAFETY: memory is from the system's allocator, or from zeroed mappings that are never unmapped or reused.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_ending_here() {
            return allocate_from_kernel(layout);
        }
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_ending_here() {
            return allocate_from_kernel(layout);
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
fn allocate_from_kernel(layout: Layout) -> *mut u8 {
    let start_at = |next: usize| next.checked_next_multiple_of(layout.align());
    let end_at = |next: usize| start_at(next)?.checked_add(layout.size());
    let next = UNUSED_BEGIN.load(Ordering::Relaxed);
    if let (Some(start), Some(end)) = (start_at(next), end_at(next))
        && next != 0
        && end <= UNUSED_END.load(Ordering::Relaxed)
    {
        UNUSED_BEGIN.store(end, Ordering::Relaxed);
        return start as *mut u8;
    }
    let Some(portion) = layout.size().checked_add(layout.align()).map(|bytes| bytes.max(PORTION_BYTES))
    else {
        return null_mut();
    };
    let mapped_bytes = MAPPED_BYTES.load(Ordering::Relaxed).saturating_add(portion);
    if mapped_bytes <= BYTES_MAX
        && let Ok(start) = map(portion)
    {
        MAPPED_BYTES.store(mapped_bytes, Ordering::Relaxed);
        UNUSED_END.store(start + portion, Ordering::Relaxed);
        UNUSED_BEGIN.store(start, Ordering::Relaxed);
        return allocate_from_kernel(layout);
    }
    // SAFETY: the caller's promises for `alloc`.
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

    /// One test for all cases, because the state is global.
    #[test]
    fn ending_thread_allocates_from_the_kernel_and_memory_is_not_freed() {
        let layout = |size, align| Layout::from_size_align(size, align).unwrap();
        // SAFETY: each call gets the layout of its memory, and memory is used within its size.
        unsafe {
            let before = Allocator.alloc(layout(100, 8));
            before.write_bytes(7, 100);
            let (from_kernel, from_heap) = {
                set_ending();
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
                assert_eq!(
                    core::slice::from_raw_parts(before, 100),
                    [7; 100],
                    "realloc should not change the old memory"
                );
                let shrunk = Allocator.realloc(grown, layout(200, 8), 50);
                assert_eq!(core::slice::from_raw_parts(shrunk, 50), [7; 50]);
                let mapped_bytes = MAPPED_BYTES.load(Ordering::Relaxed);
                let other = std::thread::spawn(move || Allocator.alloc(layout(2 << 20, 8)) as usize);
                let other = other.join().unwrap();
                assert_eq!(
                    MAPPED_BYTES.load(Ordering::Relaxed),
                    mapped_bytes,
                    "other threads should allocate from the heap"
                );
                // Above BYTES_MAX, memory comes from the heap.
                let large = Allocator.alloc(layout(BYTES_MAX, 8));
                (shrunk, [other as *mut u8, large])
            };
            assert!(MAPPED_BYTES.load(Ordering::Relaxed) <= BYTES_MAX);
            Allocator.dealloc(from_kernel, layout(50, 8));
            ENDING.store(0, Ordering::Relaxed);
            Allocator.dealloc(before, layout(100, 8));
            Allocator.dealloc(from_heap[0], layout(2 << 20, 8));
            Allocator.dealloc(from_heap[1], layout(BYTES_MAX, 8));
        }
    }
}
