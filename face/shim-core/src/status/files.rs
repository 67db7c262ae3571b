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

pub(crate) fn read(fd: c_int, bytes: &mut [u8]) -> Result<usize, Errno> {
    call!(libc::SYS_read, fd, bytes.as_mut_ptr(), bytes.len())
}

/// Gives a file a second name; EEXIST if that name exists.
pub(crate) fn link(path: &CStr, new: &CStr) -> Result<(), Errno> {
    let here = libc::AT_FDCWD;
    call!(libc::SYS_linkat, here, path.as_ptr(), here, new.as_ptr(), 0).map(drop)
}

/// Locks a whole file for this process: EAGAIN or EACCES if another process has it.
///
/// This is a record lock (`F_SETLK`), which the kernel releases when the process ends, also if other processes have
/// copies of the descriptor. A lock of `flock` or `F_OFD_SETLK` would last as long as any copy, for instance in a
/// child. A record lock is also released when this process closes *any* descriptor of the file, so this library never
/// opens the page of its own process a second time.
pub(crate) fn lock(fd: c_int) -> Result<(), Errno> {
    let lock = WHOLE_FILE;
    call!(libc::SYS_fcntl, fd, libc::F_SETLK, &raw const lock).map(drop)
}

/// The other process that holds a file's lock: its id, or 0 if this PID namespace has no id for it. `None`: unlocked.
pub(crate) fn lock_holder(fd: c_int) -> Result<Option<u32>, Errno> {
    let mut lock = WHOLE_FILE;
    call!(libc::SYS_fcntl, fd, libc::F_GETLK, &raw mut lock)?;
    let is_free = lock.l_type == libc::F_UNLCK as libc::c_short;
    Ok((!is_free).then(|| u32::try_from(lock.l_pid).unwrap_or(0)))
}

const WHOLE_FILE: libc::flock = libc::flock {
    l_type: libc::F_WRLCK as libc::c_short,
    l_whence: libc::SEEK_SET as libc::c_short,
    l_start: 0,
    l_len: 0,
    l_pid: 0,
};

/// Removes a file, if possible.
pub(crate) fn unlink(path: &CStr) {
    let _ = call!(libc::SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0);
}

/// Sets the length of an open file. A part that is added is a hole.
pub(crate) fn truncate(fd: c_int, bytes: usize) -> Result<(), Errno> {
    call!(libc::SYS_ftruncate, fd, bytes).map(drop)
}

/// Allocates memory, or disk space, for a part of a file.
pub(crate) fn allocate(fd: c_int, offset: usize, bytes: usize) -> Result<(), Errno> {
    call!(libc::SYS_fallocate, fd, 0, offset, bytes).map(drop)
}

/// The largest size that this process may give a file, in bytes.
pub(crate) fn file_size_limit() -> u64 {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    let before = sys::errno();
    // SAFETY: the limit has room for the result.
    let outcome = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, limit.as_mut_ptr()) };
    sys::set_errno(before);
    // SAFETY: filled when the call succeeded.
    if outcome == 0 { unsafe { limit.assume_init() }.rlim_cur } else { 0 }
}

/// A descriptor that becomes readable when a process writes to the file with a system call.
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
