//! Listening, closing, duplicating, and other calls on descriptors.

use core::sync::atomic::Ordering;

use libc::{c_int, c_ulong};

use crate::connections;
use crate::epoll_set;
use crate::notify::notify;
use crate::sys::{self, Errno, result};
use crate::table::{self, Entry};
use crate::wakes::Wakes;
use crate::{fork, links, listeners, memberships, options, port, prepared, real, waiters};

/// `listen`: records TCP listeners.
///
/// # Safety
/// Same as for `listen`.
pub unsafe fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: passes the caller's arguments on unchanged.
    let outcome = unsafe { real::listen(fd, backlog) };
    if outcome == 0 && prepared::is_configured() {
        let before = sys::errno();
        let _ = listeners::record(fd);
        sys::set_errno(before);
    }
    outcome
}

/// `close` of a recorded descriptor.
///
/// # Safety
/// Same as for `close`.
pub unsafe fn close(fd: c_int) -> c_int {
    let before = sys::errno();
    if !fork::is_owner_process() {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { real::close(fd) };
    }
    match release(fd) {
        // SAFETY: passes the caller's arguments on unchanged.
        Ok(()) => match unsafe { real::close(fd) } {
            0 => result(before, Ok(0)),
            failed => failed,
        },
        Err(error) => result(before, Err(error)),
    }
}

/// Removes a descriptor from this library's tables. The kernel's descriptor stays open.
fn release(fd: c_int) -> Result<(), Errno> {
    let mut wakes = Wakes::default();
    match table::entry(fd) {
        Entry::Real => {}
        Entry::Library => return Err(libc::EBADF),
        Entry::Connection(index) => {
            let Some(connection) = connections::get(index) else { return Err(libc::EBADF) };
            let mut inner = connection.lock();
            if table::entry(fd) != Entry::Connection(index) {
                return Err(libc::EBADF); // another thread has closed it
            }
            table::record(fd, Entry::Real);
            inner.descriptor_count = inner.descriptor_count.saturating_sub(1);
            let (is_last, abort) = (inner.descriptor_count == 0, inner.abort);
            drop(inner);
            waiters::wake(connection, &mut wakes); // ends other threads' calls on the descriptor
            if is_last {
                memberships::leave_all_sets(connection);
                links::close(connection, abort, &mut wakes);
                connections::give_back(connection);
            }
        }
        Entry::Listener(stand_in) => {
            for refused in listeners::remove(fd, stand_in) {
                links::refuse(refused, &mut wakes);
                connections::give_back(refused);
            }
        }
        Entry::Set(index) => {
            table::record(fd, Entry::Real);
            if let Some(set) = epoll_set::get(index)
                && epoll_set::record_closed_descriptor(set, fd)
            {
                port::handle_set_closed(set);
                links::leave_set(set, port::port_set(), &mut wakes);
                epoll_set::free_set(set);
            }
        }
    }
    links::run_deferred(&mut wakes);
    Ok(())
}

/// `dup`, `F_DUPFD` and `F_DUPFD_CLOEXEC`. `duplicate` makes the kernel's duplicate.
///
/// # Safety
/// `duplicate` is libc's own function on `fd`.
pub unsafe fn duplicate(fd: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    if table::entry(fd) == Entry::Library && fork::is_owner_process() {
        sys::set_errno(libc::EBADF);
        return -1;
    }
    let new = duplicate();
    if new >= 0 && fork::is_owner_process() {
        record_duplicate(fd, new);
    }
    new
}

/// `dup2` and `dup3`. First removes `to` from this library's tables. `flags`: those of `dup3`, 0 for `dup2`.
///
/// # Safety
/// `duplicate` is libc's own function from `fd` to `to`.
pub unsafe fn duplicate_to(fd: c_int, to: c_int, flags: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    // Where the kernel's call fails and closes nothing, the tables stay unchanged, too.
    let would_fail = || {
        // SAFETY: F_GETFD takes no argument.
        let is_closed = unsafe { real::fcntl(fd, libc::F_GETFD, 0) } < 0;
        is_closed
            || flags & !libc::O_CLOEXEC != 0
            || u64::try_from(to).is_ok_and(|to| to >= sys::descriptor_limit())
    };
    if fd == to || !fork::is_owner_process() || would_fail() {
        return duplicate();
    }
    if table::entry(fd) == Entry::Library || table::entry(to) == Entry::Library {
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
        record_duplicate(fd, new);
    }
    new
}

/// Records that a new descriptor refers to the same object as `fd`.
fn record_duplicate(fd: c_int, new: c_int) {
    match table::entry(fd) {
        Entry::Connection(index) => {
            if let Some(connection) = connections::get(index) {
                let mut inner = connection.lock();
                if connection.has_descriptor(fd) && table::record(new, Entry::Connection(index)) {
                    inner.descriptor_count += 1;
                }
            }
        }
        Entry::Set(index) => {
            if let Some(set) = epoll_set::get(index) {
                epoll_set::record_added_descriptor(set, new);
            }
        }
        Entry::Listener(_) => listeners::record_duplicate(fd, new),
        Entry::Real | Entry::Library => {}
    }
}

/// `shutdown`.
///
/// # Safety
/// Same as for `shutdown`.
pub unsafe fn shutdown(fd: c_int, how: c_int) -> c_int {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: passes the caller's arguments on unchanged.
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
    notify(connection, &mut wakes);
    links::run_deferred(&mut wakes);
    result(before, Ok(0))
}

/// `fcntl`. The descriptors of virtual connections share one socket, so each connection has status flags of its own.
///
/// # Safety
/// Same as for `fcntl`; `argument` is the command's argument, if it has one.
pub unsafe fn control(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: passes the caller's arguments on unchanged.
    let pass = || unsafe { real::fcntl(fd, command, argument) };
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        // SAFETY: `pass` duplicates `fd`, because the command is F_DUPFD or F_DUPFD_CLOEXEC.
        return unsafe { duplicate(fd, pass) };
    }
    let Some(connection) = connections::of_descriptor(fd) else { return pass() };
    match command {
        libc::F_GETFL => connection.status.load(Ordering::Relaxed),
        libc::F_SETFL => {
            options::set_status(connection, argument as c_int);
            0
        }
        _ => pass(),
    }
}

/// `ioctl`: FIONREAD and FIONBIO.
///
/// # Safety
/// Same as for `ioctl`; `argument` is the request's argument, if it has one.
pub unsafe fn device_control(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { real::ioctl(fd, request, argument) };
    };
    let value = core::ptr::with_exposed_provenance_mut::<c_int>(argument);
    // Other requests may have no argument, for instance FIOCLEX.
    if value.is_null() && matches!(request, libc::FIONREAD | libc::FIONBIO) {
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
            connection.set_nonblocking(unsafe { value.read() } != 0);
            0
        }
        // SAFETY: passes the caller's arguments on unchanged.
        _ => unsafe { real::ioctl(fd, request, argument) },
    }
}

/// `close_range`, which daemons call to close inherited descriptors. This library's own descriptors stay open.
///
/// # Safety
/// Same as for `close_range`.
pub unsafe fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    const CLOSE_ON_EXEC: c_int = 4; // CLOSE_RANGE_CLOEXEC
    if flags & CLOSE_ON_EXEC != 0 || first > last || !fork::is_owner_process() {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { close_range_in_kernel(first, last, flags) };
    }
    let before = sys::errno();
    let mut begin = first;
    let entries: Vec<(c_int, Entry)> = table::entries_in(first..=last).collect();
    for (fd, entry) in entries {
        if entry != Entry::Library {
            let _ = release(fd);
            continue;
        }
        let own = fd as u32;
        // SAFETY: a part of the range that the caller asked to close.
        if own > begin && unsafe { close_range_in_kernel(begin, own - 1, flags) } != 0 {
            return -1;
        }
        begin = own + 1;
    }
    if begin > last {
        return result(before, Ok(0));
    }
    // SAFETY: as above.
    unsafe { close_range_in_kernel(begin, last, flags) }
}

/// The system call, by number because glibc has the function only since 2.34.
unsafe fn close_range_in_kernel(first: u32, last: u32, flags: c_int) -> c_int {
    // SAFETY: the caller vouches for closing the range.
    unsafe { sys::raw(libc::SYS_close_range, &[first as usize, last as usize, flags as usize]) as c_int }
}
