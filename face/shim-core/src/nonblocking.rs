//! Non-blocking reads.

use libc::{c_int, iovec};

use crate::connections::{Connection, ReadOptions};
use crate::links;
use crate::sys::Errno;
use crate::wakes::Wakes;

/// Whether a call with these flags must not wait.
#[inline]
pub(crate) fn is_nonblocking(connection: &Connection, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT != 0 || connection.is_nonblocking()
}

/// Reads the bytes that have arrived, without waiting; EAGAIN if no byte has.
///
/// # Safety
/// `parts` describe writable memory.
pub(crate) unsafe fn receive_once(
    fd: c_int,
    connection: &'static Connection,
    parts: &[iovec],
    flags: c_int,
) -> Result<usize, Errno> {
    let how = ReadOptions { peek: flags & libc::MSG_PEEK != 0, discard: flags & libc::MSG_TRUNC != 0 };
    // SAFETY: the caller vouches for the parts.
    let read = unsafe { connection.read(fd, parts, how) }?;
    if read.consumed_to_report > 0 {
        let mut wakes = Wakes::default();
        links::consumed(connection, read.consumed_to_report, &mut wakes);
        links::run_deferred(&mut wakes);
    }
    Ok(read.bytes)
}
