//! Listening, closing, duplicating, and other calls on descriptors.

use core::sync::atomic::Ordering;

use libc::{c_int, c_ulong};

use crate::connections;
use crate::ready;
use crate::source::{self, notify};
use crate::sys::{self, Errno, result};
use crate::table::{self, Entry};
use crate::wakes::Wakes;
use crate::{fork, links, listeners, options, port, prepared, real, waiters};

/// `listen`: notes TCP listeners.
///
/// # Safety
/// Same as for `listen`.
pub unsafe fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: passes the caller's arguments on unchanged.
    let outcome = unsafe { real::listen(fd, backlog) };
    if outcome == 0 && prepared::is_configured() {
        let before = sys::errno();
        let _ = listeners::listening(fd);
        sys::set_errno(before);
    }
    outcome
}

/// `close` of a noted descriptor.
///
/// # Safety
/// Same as for `close`.
pub unsafe fn close(fd: c_int) -> c_int {
    let before = sys::errno();
    if !fork::is_owner_process() {
        // SAFETY: passes the caller's arguments on unchanged; a child does not use the table.
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

/// Closes a descriptor in this library's tables; the number itself stays open.
fn release(fd: c_int) -> Result<(), Errno> {
    let mut wakes = Wakes::default();
    match table::entry(fd) {
        Entry::Real => {}
        Entry::Own => return Err(libc::EBADF),
        Entry::Connection(index) => {
            let Some(connection) = connections::get(index) else { return Err(libc::EBADF) };
            let mut inner = connection.lock();
            if table::entry(fd) != Entry::Connection(index) {
                return Err(libc::EBADF); // another thread has closed it
            }
            table::note(fd, Entry::Real);
            inner.references = inner.references.saturating_sub(1);
            let (last, abort) = (inner.references == 0, inner.abort);
            drop(inner);
            waiters::wake(connection, &mut wakes); // wakes threads that are blocked on it
            if last {
                source::forget(connection);
                links::close(connection, abort, &mut wakes);
                connections::give_back(connection);
            }
        }
        Entry::Listener(stand_in) => {
            for orphan in listeners::closed(fd, stand_in) {
                links::refuse(orphan, &mut wakes);
                connections::give_back(orphan);
            }
        }
        Entry::Set(index) => {
            table::note(fd, Entry::Real);
            if let Some(set) = ready::get(index)
                && ready::descriptor_closed(set, fd)
            {
                port::set_closed(set);
                links::leave(set, port::home(), &mut wakes);
                ready::closed(set);
            }
        }
    }
    links::settle(&mut wakes);
    Ok(())
}

/// `dup`, `F_DUPFD` and `F_DUPFD_CLOEXEC`. `duplicate` makes the kernel's duplicate.
///
/// # Safety
/// `duplicate` is libc's own function on `fd`.
pub unsafe fn duplicate(fd: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    if table::entry(fd) == Entry::Own && fork::is_owner_process() {
        sys::set_errno(libc::EBADF);
        return -1;
    }
    let new = duplicate();
    if new >= 0 && fork::is_owner_process() {
        name_too(fd, new);
    }
    new
}

/// `dup2` and `dup3`. Closes `to` in this library's tables first.
///
/// # Safety
/// `duplicate` is libc's own function from `fd` to `to`.
pub unsafe fn duplicate_to(fd: c_int, to: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    // Without effect on the tables where the kernel's call has none.
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

/// Records that a new descriptor refers to the same object as `fd`.
fn name_too(fd: c_int, new: c_int) {
    match table::entry(fd) {
        Entry::Connection(index) => {
            if let Some(connection) = connections::get(index) {
                let mut inner = connection.lock();
                if connection.has_descriptor(fd) && table::note(new, Entry::Connection(index)) {
                    inner.references += 1;
                }
            }
        }
        Entry::Set(index) => {
            if let Some(set) = ready::get(index) {
                ready::descriptor_added(set, new);
            }
        }
        Entry::Listener(_) => listeners::named_too(fd, new),
        Entry::Real | Entry::Own => {}
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
    links::settle(&mut wakes);
    result(before, Ok(0))
}

/// `fcntl`. Each virtual connection has its own status flags, because the descriptors share one socket.
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
    // Other requests may have no argument, such as FIOCLEX.
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

/// `close_range`, by which daemons close inherited descriptors. This library's own descriptors stay open.
///
/// # Safety
/// Same as for `close_range`.
pub unsafe fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    const CLOSE_ON_EXEC: c_int = 4; // CLOSE_RANGE_CLOEXEC
    if flags & CLOSE_ON_EXEC != 0 || first > last || !fork::is_owner_process() {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { in_kernel(first, last, flags) };
    }
    let before = sys::errno();
    let mut begin = first;
    let noted: Vec<(c_int, Entry)> = table::noted(first..=last).collect();
    for (fd, entry) in noted {
        if entry != Entry::Own {
            let _ = release(fd);
            continue;
        }
        let own = fd as u32;
        // SAFETY: a part of the range that the caller asked to close.
        if own > begin && unsafe { in_kernel(begin, own - 1, flags) } != 0 {
            return -1;
        }
        begin = own + 1;
    }
    if begin > last {
        return result(before, Ok(0));
    }
    // SAFETY: as above.
    unsafe { in_kernel(begin, last, flags) }
}

/// Calls by number: glibc has the function from 2.34 on only.
unsafe fn in_kernel(first: u32, last: u32, flags: c_int) -> c_int {
    // SAFETY: the caller vouches for closing these.
    unsafe { sys::raw(libc::SYS_close_range, &[first as usize, last as usize, flags as usize]) as c_int }
}
