//! `syscall(2)`: system calls that a server makes by number rather than by name.
//!
//! libuv closes descriptors this way and sets up io_uring. io_uring is refused, because operations on its rings bypass
//! this library; without it such a server waits with epoll. A server that makes system calls without libc bypasses this
//! library entirely: the link port stays closed, and the server serves its clients as without Spillway.

use core::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_long, c_uint};

use crate::{descriptors, log, prepared, real, sys, table};

/// `syscall`.
///
/// # Safety
/// Same as for the system call.
pub unsafe fn call(number: c_long, arguments: [usize; 6]) -> c_long {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: passes the caller's arguments on unchanged.
    unsafe {
        match number {
            libc::SYS_close if !table::is_real(a as c_int) => descriptors::close(a as c_int).into(),
            libc::SYS_close_range => descriptors::close_range(a as c_uint, b as c_uint, c as c_int).into(),
            libc::SYS_io_uring_setup if prepared::is_configured() => refuse_rings(),
            _ => real::syscall(number, a, b, c, d, e, f),
        }
    }
}

#[cold]
fn refuse_rings() -> c_long {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Ordering::Relaxed) {
        log::line(format_args!(
            "io_uring is not supported: io_uring_setup fails with ENOSYS, so that the server uses epoll"
        ));
    }
    sys::set_errno(libc::ENOSYS);
    -1
}
