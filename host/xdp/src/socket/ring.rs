//! Queues of entries between kernel and process, each with one producer and one consumer
//! (Documentation/networking/af_xdp.rst).
//!
//! Two indices count all entries ever produced and consumed, modulo 2^32. The producer advances its index
//! after writing entries, the consumer after reading them.

use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use super::mapping::Mapping;

/// A ring in shared memory. The `usize` fields are offsets in the mapping.
#[derive(Debug)]
struct Shared<T> {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    /// The number of entries minus one; the number is a power of two.
    mask: u32,
    entry: PhantomData<T>,
}

impl<T: Copy> Shared<T> {
    fn map(fd: &OwnedFd, offsets: &libc::xdp_ring_offset, at: u64, count: u32) -> io::Result<Shared<T>> {
        let offset = |offset: u64| usize::try_from(offset).map_err(io::Error::other);
        let entries = offset(offsets.desc)?;
        let bytes = entries + count as usize * size_of::<T>();
        let ring = Shared {
            mapping: Mapping::shared(fd, at, bytes)?,
            producer: offset(offsets.producer)?,
            consumer: offset(offsets.consumer)?,
            flags: offset(offsets.flags)?,
            entries,
            mask: count - 1,
            entry: PhantomData,
        };
        let is_inside =
            [ring.producer, ring.consumer, ring.flags].iter().all(|at| at + 4 <= bytes && at % 4 == 0);
        let is_aligned = ring.entries.is_multiple_of(align_of::<T>());
        if !(is_inside && is_aligned && count.is_power_of_two()) {
            return Err(io::Error::other("the kernel describes an impossible ring"));
        }
        Ok(ring)
    }

    fn index(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `map` has checked that the offset is aligned and inside the mapping; both sides access it atomically.
        unsafe { AtomicU32::from_ptr(self.mapping.start().as_ptr().add(at).cast()) }
    }

    /// The entry with this number, counted since the ring was created, modulo 2^32.
    fn entry(&self, number: u32) -> *mut T {
        let at = self.entries + (number & self.mask) as usize * size_of::<T>();
        debug_assert!(at + size_of::<T>() <= self.mapping.len(), "the mask keeps entries inside the mapping");
        // SAFETY: `map` has made the mapping long enough for all entries.
        unsafe { self.mapping.start().as_ptr().add(at).cast() }
    }

    /// Whether the kernel reads this ring only after a system call (XDP_USE_NEED_WAKEUP).
    fn needs_wakeup(&self) -> bool {
        self.index(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring that this process fills.
#[derive(Debug)]
pub(super) struct Producer<T> {
    shared: Shared<T>,
    written: u32,
    published: u32,
}

impl<T: Copy> Producer<T> {
    pub(super) fn map(
        fd: &OwnedFd,
        offsets: &libc::xdp_ring_offset,
        at: u64,
        count: u32,
    ) -> io::Result<Producer<T>> {
        Ok(Producer { shared: Shared::map(fd, offsets, at, count)?, written: 0, published: 0 })
    }

    /// Writes an entry. The caller must not write to a full ring; there are fewer frames than entries.
    #[inline]
    pub(super) fn push(&mut self, entry: T) {
        debug_assert!(
            self.written.wrapping_sub(self.consumed()) <= self.shared.mask,
            "the ring has room for all frames"
        );
        // SAFETY: the entry is inside the mapping, and the kernel does not read it before it is published.
        unsafe { self.shared.entry(self.written).write(entry) };
        self.written = self.written.wrapping_add(1);
    }

    /// Lets the kernel read the written entries. Returns whether it has not read all of them yet.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        if self.written != self.published {
            self.published = self.written;
            self.shared.index(self.shared.producer).store(self.written, Ordering::Release);
        }
        self.waiting() > 0
    }

    pub(super) fn waiting(&self) -> u32 {
        self.published.wrapping_sub(self.consumed())
    }

    pub(super) fn needs_wakeup(&self) -> bool {
        self.shared.needs_wakeup()
    }

    fn consumed(&self) -> u32 {
        self.shared.index(self.shared.consumer).load(Ordering::Acquire)
    }
}

/// A ring that the kernel fills.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    shared: Shared<T>,
    read: u32,
    /// The kernel's index when it was last read.
    available: u32,
}

impl<T: Copy> Consumer<T> {
    pub(super) fn map(
        fd: &OwnedFd,
        offsets: &libc::xdp_ring_offset,
        at: u64,
        count: u32,
    ) -> io::Result<Consumer<T>> {
        Ok(Consumer { shared: Shared::map(fd, offsets, at, count)?, read: 0, available: 0 })
    }

    #[inline]
    pub(super) fn has_entry(&mut self) -> bool {
        if self.read == self.available {
            self.available = self.shared.index(self.shared.producer).load(Ordering::Acquire);
        }
        self.read != self.available
    }

    /// The next entry. The kernel may overwrite its place only after [`release`](Self::release).
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if !self.has_entry() {
            return None;
        }
        // SAFETY: the entry is inside the mapping, and the kernel has published it.
        let entry = unsafe { self.shared.entry(self.read).read() };
        self.read = self.read.wrapping_add(1);
        Some(entry)
    }

    /// Lets the kernel overwrite the entries that were read.
    #[inline]
    pub(super) fn release(&mut self) {
        self.shared.index(self.shared.consumer).store(self.read, Ordering::Release);
    }
}
