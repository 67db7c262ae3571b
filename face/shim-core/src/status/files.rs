//! System calls on files, for the status page.

use core::ffi::CStr;
use core::mem::MaybeUninit;

use libc::c_int;

use crate::sys::{self, Errno, call};

/// Opens a file, closed on exec.
pub(crate) fn open(path: &CStr, flags: c_int, mode: u32) -> Result<c_int, Errno> {
    let flags = flags | libc::O_CLOEXEC;
    call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, mode).map(|fd| fd as c_int)
}

/// Reads once.
pub(crate) fn read(fd: c_int, bytes: &mut [u8]) -> Result<usize, Errno> {
    call!(libc::SYS_read, fd, bytes.as_mut_ptr(), bytes.len())
}

/// Removes a file, if that can be done.
pub(crate) fn unlink(path: &CStr) {
    let _ = call!(libc::SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0);
}

/// Gives an open file this length; what is new is a hole.
pub(crate) fn truncate(fd: c_int, bytes: usize) -> Result<(), Errno> {
    call!(libc::SYS_ftruncate, fd, bytes).map(drop)
}

/// Takes memory, or room on the disk, for a part of a file.
pub(crate) fn take_room(fd: c_int, offset: usize, bytes: usize) -> Result<(), Errno> {
    call!(libc::SYS_fallocate, fd, 0, offset, bytes).map(drop)
}

/// Files may not grow beyond this.
pub(crate) fn file_size_limit() -> u64 {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    let before = sys::errno();
    // SAFETY: the limit has room for the result.
    let outcome = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, limit.as_mut_ptr()) };
    sys::set_errno(before);
    // SAFETY: filled when the call succeeded.
    if outcome == 0 { unsafe { limit.assume_init() }.rlim_cur } else { 0 }
}

/// A descriptor that becomes readable when somebody writes the file with a system call.
pub(crate) fn watch_writes(path: &CStr) -> Result<c_int, Errno> {
    let fd = call!(libc::SYS_inotify_init1, libc::IN_NONBLOCK | libc::IN_CLOEXEC)? as c_int;
    match call!(libc::SYS_inotify_add_watch, fd, path.as_ptr(), libc::IN_MODIFY) {
        Ok(_) => Ok(fd),
        Err(error) => {
            sys::close(fd);
            Err(error)
        }
    }
}
