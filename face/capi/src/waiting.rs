//! Timeouts for `poll`, and waiting for programs without an event loop.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::status::Fault;

/// Milliseconds for `poll`, rounded up; -1 for `None`.
pub(crate) fn timeout_ms(due: Option<Instant>) -> c_int {
    let Some(due) = due else { return -1 };
    let left = due.saturating_duration_since(Instant::now()).as_nanos().div_ceil(1_000_000);
    c_int::try_from(left).unwrap_or(c_int::MAX)
}

/// Waits until a descriptor is readable, or for `timeout`. Returns false after a signal. The caller holds the objects of the
/// descriptors.
pub(crate) fn wait_for(descriptors: [Option<RawFd>; 2], timeout: Option<Duration>) -> Result<bool, Fault> {
    let timeout = timeout
        .map(|left| Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() });
    // SAFETY: the descriptor of a session or relief stays open with its object, which the caller holds.
    let borrowed = descriptors.into_iter().flatten().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
    let mut watched: Vec<PollFd<'_>> =
        borrowed.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    match poll(&mut watched, timeout.as_ref()) {
        Ok(_) => Ok(true),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(Fault::system("poll", &error)),
    }
}
