//! `accept` on the application's listening sockets: returns helped and direct clients.

use core::ptr;
use std::sync::{Mutex, TryLockError};

use libc::{c_int, sockaddr, socklen_t};

use crate::blocked::Blocked;
use crate::connections::Connection;
use crate::log::{self, Reason};
use crate::sys::{self, Errno, result};
use crate::table::{self, Entry};
use crate::wakes::Wakes;
use crate::{connection_addresses, fork, links, listeners, port, prepared, real};

/// Held while a thread polls a blocking listener and accepts from it. Otherwise several threads could see the same
/// client, and all but one would block in the kernel, where helped clients cannot wake them. Threads use `try_lock`: if
/// the holder blocks nevertheless, because another process has accepted the client, the other threads continue.
static REAL_ACCEPT: Mutex<()> = Mutex::new(());

/// `accept4` on a listener, with the flags of `accept4`.
///
/// # Safety
/// Same as for `accept4`.
pub unsafe fn accept(fd: c_int, out: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
    let before = sys::errno();
    if prepared::is_link_port_pending() && is_blocking(fd) {
        // A server with a blocking listener may call `accept` without polling it.
        port::open_for_awaited(fd);
    }
    // SAFETY: passes the caller's arguments on unchanged.
    let pass = || unsafe { real::accept4(fd, out, length, flags) };
    if !matches!(table::entry(fd), Entry::Listener(_)) || !fork::is_owner() {
        return pass();
    }
    // Some accepts prefer a real connection. If none waits, they accept a virtual connection, because a blocking
    // listener would block. A child between `vfork` and `exec` has descriptors of its own, so it gets real ones only.
    let may_be_virtual = listeners::has_queued() && fork::is_owner_process();
    if may_be_virtual && (listeners::prefers_virtual() || !is_readable(fd)) {
        // SAFETY: same as for `accept4`.
        if let Some(outcome) = unsafe { accept_virtual(fd, out, length, flags) } {
            return result(before, outcome);
        }
    }
    if port::library_set().is_none() || !listeners::is_served(fd) || !is_blocking(fd) {
        return pass();
    }
    let Some(stand_in) = listeners::stand_in_of(fd) else { return pass() };
    // SAFETY: same as for `accept4`.
    result(before, unsafe { wait(fd, stand_in, out, length, flags) })
}

/// Waits for a direct or a helped client.
unsafe fn wait(
    fd: c_int,
    stand_in: &'static Connection,
    out: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> Result<c_int, Errno> {
    let mut blocked = Blocked::new(vec![stand_in]);
    let mut descriptors = vec![libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    loop {
        if listeners::has_queued() {
            // SAFETY: the caller vouches for the address.
            if let Some(outcome) = unsafe { accept_virtual(fd, out, length, flags) } {
                return outcome;
            }
        }
        if table::entry(fd) != Entry::Listener(stand_in.index) {
            return Err(libc::EBADF); // closed by another thread
        }
        match REAL_ACCEPT.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            _guard if is_readable(fd) => {
                drop(blocked); // another blocked thread becomes the leader
                // SAFETY: passes the caller's arguments on unchanged.
                let accepted = unsafe { real::accept4(fd, out, length, flags) };
                return if accepted < 0 { Err(sys::errno()) } else { Ok(accepted) };
            }
            _ => {}
        }
        blocked.sleep(&mut descriptors, None, ptr::null())?;
    }
}

fn is_blocking(fd: c_int) -> bool {
    sys::status(fd).is_ok_and(|flags| flags & libc::O_NONBLOCK == 0)
}

fn is_readable(fd: c_int) -> bool {
    let mut descriptor = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    sys::poll(&mut descriptor, Some(core::time::Duration::ZERO), ptr::null()).is_ok_and(|count| count > 0)
}

unsafe fn accept_virtual(
    fd: c_int,
    out: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> Option<Result<c_int, Errno>> {
    match listeners::accept(fd, flags & libc::SOCK_CLOEXEC != 0) {
        Ok(None) => None,
        Err(error) => {
            log::line(format_args!("a helped connection waits to be accepted: {}", Reason(error)));
            Some(Err(error))
        }
        Ok(Some((new, connection))) => {
            connection.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0);
            // SAFETY: the caller vouches for the address.
            unsafe { connection_addresses::fill_client(connection, out, length) };
            let mut wakes = Wakes::default();
            links::accept(connection, &mut wakes);
            links::run_deferred(&mut wakes);
            Some(Ok(new))
        }
    }
}
