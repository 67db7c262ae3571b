//! The calling thread's errno.

use libc::c_int;

/// The kernel's error number.
pub(crate) type Errno = c_int;

/// The address of the calling thread's errno; each thread has its own.
#[inline]
pub(crate) fn errno_address() -> *mut Errno {
    // SAFETY: a function without arguments that always returns.
    unsafe { libc::__errno_location() }
}

/// The calling thread's errno.
pub(crate) fn errno() -> Errno {
    // SAFETY: the address is valid for the whole life of the thread.
    unsafe { *errno_address() }
}

/// Sets errno, as the result of a function that the application called.
pub(crate) fn set_errno(value: Errno) {
    // SAFETY: as above.
    unsafe { *errno_address() = value }
}
