//! `syscall(2)`: what servers do by number rather than by name.
//!
//! libuv closes that way, and makes io_uring's rings, which are refused: what a server does in rings does not come
//! by here, but without rings it waits with epoll. A server that has system calls of its own is not seen; it never
//! waits for its listener where we would notice, so that the link port stays closed and it serves its clients as
//! ever.

use core::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_long, c_uint};

use crate::{descriptors, log, prepared, real, sys, table};

/// `syscall`.
///
/// # Safety
/// As of the system call.
pub unsafe fn call(number: c_long, arguments: [usize; 6]) -> c_long {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the call as it came.
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
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        log::line(format_args!(
            "io_uring cannot be helped: the server is told that there is none, and uses epoll"
        ));
    }
    sys::set_errno(libc::ENOSYS);
    -1
}
