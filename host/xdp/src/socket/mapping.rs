//! Memory that the kernel and this process share.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A mapping of memory, unmapped on drop.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    is_huge: bool,
}

// SAFETY: the mapping owns the memory and is not bound to a thread; references to the memory borrow the mapping.
unsafe impl Send for Mapping {}
// SAFETY: with a shared reference the methods only read the memory, or return a raw pointer to it, for whose use the
// caller is responsible.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed memory, in huge pages if `bytes` is a multiple of 2 MiB and the system has free ones.
    pub(super) fn anonymous(bytes: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        if bytes.is_multiple_of(HUGE_PAGE_BYTES)
            && let Ok(mut mapping) =
                Mapping::new(bytes, flags | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB, -1, 0)
        {
            mapping.is_huge = true;
            return Ok(mapping);
        }
        Mapping::new(bytes, flags, -1, 0)
    }

    /// Maps `bytes` bytes of an AF_XDP socket from `offset` on, shared with the kernel: one of its rings.
    pub(super) fn shared(fd: &impl AsFd, offset: u64, bytes: usize) -> io::Result<Mapping> {
        let offset = i64::try_from(offset).map_err(io::Error::other)?;
        Mapping::new(bytes, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_fd().as_raw_fd(), offset)
    }

    fn new(bytes: usize, flags: libc::c_int, fd: libc::c_int, offset: i64) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: with a null address and without MAP_FIXED, mmap changes no existing mapping.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Mapping { start, bytes, is_huge: false })
    }

    pub(super) fn is_huge(&self) -> bool {
        self.is_huge
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// The `length` bytes from `start` on; `None` if they exceed the mapping. The caller must pass only ranges that the
    /// kernel does not own.
    #[inline]
    pub(super) fn range(&self, start: usize, length: usize) -> Option<&[u8]> {
        let range = self.inside(start, length)?;
        // SAFETY: the range is inside the mapping, whose bytes are initialised. The kernel does not write to it, because the
        // caller passes only ranges that the kernel does not own.
        Some(unsafe { std::slice::from_raw_parts(range.as_ptr(), length) })
    }

    /// As [`Mapping::range`], for writing.
    #[inline]
    pub(super) fn range_mut(&mut self, start: usize, length: usize) -> Option<&mut [u8]> {
        let range = self.inside(start, length)?;
        // SAFETY: the range is inside the mapping, whose bytes are initialised. The mapping is borrowed exclusively, and the
        // kernel does not use the range, because the caller passes only ranges that the kernel does not own.
        Some(unsafe { std::slice::from_raw_parts_mut(range.as_ptr(), length) })
    }

    fn inside(&self, start: usize, length: usize) -> Option<NonNull<u8>> {
        let is_inside = start.checked_add(length).is_some_and(|end| end <= self.bytes);
        // SAFETY: the offset is inside the mapping.
        is_inside.then(|| unsafe { self.start.add(start) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and no reference to it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests huge pages only if the system has free ones: `sysctl vm.nr_hugepages=8`.
    #[test]
    fn memory_is_mapped_as_long_as_its_owner_exists() {
        let mut mapping = Mapping::anonymous(2 * HUGE_PAGE_BYTES).unwrap();
        let mut other = Mapping::anonymous(2 * HUGE_PAGE_BYTES).unwrap();
        println!("huge pages: {} and {}", mapping.is_huge(), other.is_huge());
        for start in [0, HUGE_PAGE_BYTES, 2 * HUGE_PAGE_BYTES - 4] {
            mapping.range_mut(start, 4).unwrap().fill(7);
            other.range_mut(start, 4).unwrap().fill(8);
            assert_eq!(mapping.range(start, 4).unwrap(), [7; 4], "the other mapping should be elsewhere");
        }
        assert!(mapping.range(2 * HUGE_PAGE_BYTES - 3, 4).is_none(), "a range that ends outside");
    }
}
