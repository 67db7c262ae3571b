//! Listening, accepting, closing, duplicating, and what else is done to a descriptor.

use core::sync::atomic::Ordering;

use libc::{c_int, c_ulong, sockaddr, socklen_t};

use crate::connections::{self, Connection};
use crate::log::{self, Reason};
use crate::ready::{self, Wakes};
use crate::sys::{self, Errno};
use crate::table::{self, Entry};
use crate::{data, fork, links, listeners, port, real};

fn result(before: Errno, outcome: Result<c_int, Errno>) -> c_int {
    match outcome {
        Ok(value) => {
            sys::set_errno(before);
            value
        }
        Err(error) => {
            sys::set_errno(error);
            -1
        }
    }
}

/// `listen`: notes TCP listeners.
///
/// # Safety
/// As of `listen`.
pub unsafe fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: the call as it came.
    let outcome = unsafe { real::listen(fd, backlog) };
    if outcome == 0 && port::is_configured() {
        let before = sys::errno();
        let _ = listeners::listening(fd);
        sys::set_errno(before);
    }
    outcome
}

/// `accept4` on a noted listener. `flags` as of `accept4`.
///
/// # Safety
/// As of `accept4`.
pub unsafe fn accept(fd: c_int, out: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
    let before = sys::errno();
    let ours = matches!(table::entry(fd), Entry::Listener(_)) && fork::is_owner();
    // Where it is a real connection's turn and there is none, the listener may be a blocking one.
    if ours && listeners::has_queued() && (listeners::virtual_turn() || !is_readable(fd)) {
        // SAFETY: as of `accept4`.
        if let Some(outcome) = unsafe { accept_virtual(fd, out, length, flags) } {
            return result(before, outcome);
        }
    }
    // SAFETY: the call as it came.
    unsafe { real::accept4(fd, out, length, flags) }
}

fn is_readable(fd: c_int) -> bool {
    let mut descriptor = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    sys::poll(&mut descriptor, 0) == Ok(1)
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
            connection.nonblocking.store(flags & libc::SOCK_NONBLOCK != 0, Ordering::Relaxed);
            // SAFETY: the caller vouches for the address.
            unsafe { data::fill_client(connection, out, length) };
            let mut wakes = Wakes::default();
            links::accept(connection, &mut wakes);
            wakes.send();
            Some(Ok(new))
        }
    }
}

/// `close` of a noted descriptor.
///
/// # Safety
/// As of `close`.
pub unsafe fn close(fd: c_int) -> c_int {
    let before = sys::errno();
    if !fork::is_owner_process() {
        // SAFETY: the call as it came; in a child the table is nobody's any more.
        return unsafe { real::close(fd) };
    }
    match release(fd) {
        // SAFETY: the call as it came.
        Ok(()) => match unsafe { real::close(fd) } {
            0 => result(before, Ok(0)),
            failed => failed,
        },
        Err(error) => result(before, Err(error)),
    }
}

/// What a descriptor's close means for us; the number itself stays open.
fn release(fd: c_int) -> Result<(), Errno> {
    let mut wakes = Wakes::default();
    match table::entry(fd) {
        Entry::Real => {}
        Entry::Own => return Err(libc::EBADF),
        Entry::Connection(index) => {
            let Some(connection) = connections::get(index) else { return Err(libc::EBADF) };
            let mut inner = connection.lock();
            if table::entry(fd) != Entry::Connection(index) {
                return Err(libc::EBADF); // another thread was faster
            }
            table::note(fd, Entry::Real);
            inner.references = inner.references.saturating_sub(1);
            let (last, abort) = (inner.references == 0, inner.abort);
            drop(inner);
            if last {
                ready::forget(connection);
                links::close(connection, abort, &mut wakes);
                connections::give_back(connection);
            }
        }
        Entry::Listener(stand_in) => listeners::closed(fd, stand_in, &mut wakes),
        Entry::Set(index) => {
            table::note(fd, Entry::Real);
            if let Some(set) = ready::get(index) {
                port::set_closed(set);
                links::leave(set, port::home(), &mut wakes);
                ready::closed(set);
            }
        }
    }
    wakes.send();
    Ok(())
}

/// `dup`, `F_DUPFD` and `F_DUPFD_CLOEXEC`: `duplicate` does it in the kernel.
///
/// # Safety
/// `duplicate` is libc's own function on `fd`.
pub unsafe fn duplicate(fd: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    if table::entry(fd) == Entry::Own && fork::is_owner() {
        sys::set_errno(libc::EBADF);
        return -1;
    }
    let new = duplicate();
    if new >= 0 {
        name_too(fd, new);
    }
    new
}

/// `dup2` and `dup3`: closes `to` in our books first.
///
/// # Safety
/// `duplicate` is libc's own function from `fd` to `to`.
pub unsafe fn duplicate_to(fd: c_int, to: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    // Without effect where the kernel would do nothing either.
    // SAFETY: F_GETFD takes no argument.
    if fd == to || !fork::is_owner_process() || unsafe { real::fcntl(fd, libc::F_GETFD, 0) } < 0 {
        return duplicate();
    }
    if table::entry(fd) == Entry::Own || table::entry(to) == Entry::Own {
        sys::set_errno(libc::EBADF);
        return -1;
    }
    let before = sys::errno();
    if let Err(error) = release(to) {
        sys::set_errno(error);
        return -1;
    }
    sys::set_errno(before);
    let new = duplicate();
    if new >= 0 {
        name_too(fd, new);
    }
    new
}

/// A new descriptor names the same virtual connection. Sets and listeners are served by their first number only.
fn name_too(fd: c_int, new: c_int) {
    if let Some(connection) = connections::of_descriptor(fd) {
        let mut inner = connection.lock();
        if table::note(new, Entry::Connection(connection.index)) {
            inner.references += 1;
        }
    }
}

/// `shutdown`.
///
/// # Safety
/// As of `shutdown`.
pub unsafe fn shutdown(fd: c_int, how: c_int) -> c_int {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: the call as it came.
        return unsafe { real::shutdown(fd, how) };
    };
    let before = sys::errno();
    let (reading, writing) = match how {
        libc::SHUT_RD => (true, false),
        libc::SHUT_WR => (false, true),
        libc::SHUT_RDWR => (true, true),
        _ => return result(before, Err(libc::EINVAL)),
    };
    let mut wakes = Wakes::default();
    if connection.shut_down(reading, writing) {
        links::finish(connection, &mut wakes);
    }
    ready::notify(connection, &mut wakes);
    wakes.send();
    result(before, Ok(0))
}

/// `fcntl`: flags of virtual connections are their own, because their descriptors share one socket.
///
/// # Safety
/// As of `fcntl`, with the one argument that a command may have.
pub unsafe fn control(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the call as it came.
    let pass = || unsafe { real::fcntl(fd, command, argument) };
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        // SAFETY: that is what the call does.
        return unsafe { duplicate(fd, pass) };
    }
    let Some(connection) = connections::of_descriptor(fd) else { return pass() };
    match command {
        libc::F_GETFL => {
            let nonblocking = connection.nonblocking.load(Ordering::Relaxed);
            libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 }
        }
        libc::F_SETFL => {
            let nonblocking = argument & libc::O_NONBLOCK as usize != 0;
            connection.nonblocking.store(nonblocking, Ordering::Relaxed);
            0
        }
        _ => pass(),
    }
}

/// `ioctl`: FIONREAD and FIONBIO.
///
/// # Safety
/// As of `ioctl`, with the one argument that a request may have.
pub unsafe fn device_control(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: the call as it came.
        return unsafe { real::ioctl(fd, request, argument) };
    };
    let value = core::ptr::with_exposed_provenance_mut::<c_int>(argument);
    if value.is_null() {
        sys::set_errno(libc::EFAULT);
        return -1;
    }
    match request {
        libc::FIONREAD => {
            let bytes = c_int::try_from(connection.readable_bytes()).unwrap_or(c_int::MAX);
            // SAFETY: FIONREAD's argument points at an int to be written.
            unsafe { value.write(bytes) };
            0
        }
        libc::FIONBIO => {
            // SAFETY: FIONBIO's argument points at an int to be read.
            connection.nonblocking.store(unsafe { value.read() } != 0, Ordering::Relaxed);
            0
        }
        // SAFETY: the call as it came.
        _ => unsafe { real::ioctl(fd, request, argument) },
    }
}

/// For SO_LINGER with a time of zero: closing resets.
pub(crate) fn set_abort(connection: &Connection, abort: bool) {
    connection.lock().abort = abort;
}
