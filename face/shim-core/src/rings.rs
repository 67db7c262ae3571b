//! io_uring is refused: what a server does in rings does not come by here.
//!
//! A server that makes its rings through libc's `syscall`, as libuv does, is told that the kernel has none, and
//! waits with epoll instead. One that has system calls of its own is not seen: it never polls its listener where
//! we would notice, so that the link port stays closed and it serves its clients as ever.

use core::sync::atomic::{AtomicBool, Ordering};

use libc::c_long;

use crate::{log, port, sys};

/// Whether this system call is to be refused; errno is set then.
#[inline]
pub fn is_refused(number: c_long) -> bool {
    number == libc::SYS_io_uring_setup && refuse()
}

#[cold]
fn refuse() -> bool {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !port::is_configured() {
        return false;
    }
    if !TOLD.swap(true, Ordering::Relaxed) {
        log::line(format_args!(
            "io_uring cannot be helped: the server is told that there is none, and uses epoll"
        ));
    }
    sys::set_errno(libc::ENOSYS);
    true
}
