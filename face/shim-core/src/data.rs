//! Reading and writing virtual connections.

use libc::{c_int, c_void, iovec, msghdr, sockaddr, socklen_t, ssize_t};

use crate::connections::{self, Connection};
use crate::nonblocking::{is_nonblocking, receive_once};
use crate::sys::{self, Errno};
use crate::wakes::Wakes;
use crate::{blocking, links, real};

/// Maximum number of parts in one call; Linux's UIO_MAXIOV.
const PARTS_MAX: usize = 1024;

/// The C return value of a call; sets errno only if the call failed.
#[inline]
pub(crate) fn result(outcome: Result<usize, Errno>) -> ssize_t {
    match outcome {
        Ok(count) => count as ssize_t,
        Err(error) => {
            sys::set_errno(error);
            -1
        }
    }
}

/// `read`, `recv` and equivalent calls.
///
/// # Safety
/// Same as for `recv`.
pub unsafe fn receive(fd: c_int, buffer: *mut c_void, count: usize, flags: c_int) -> ssize_t {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: passes the caller's arguments on unchanged, to a descriptor that is a socket or reads as one.
        return unsafe {
            if flags == 0 { real::read(fd, buffer, count) } else { real::recv(fd, buffer, count, flags) }
        };
    };
    if count == 0 && flags == 0 {
        return 0; // read(2) of 0 bytes does not wait
    }
    let part = iovec { iov_base: buffer, iov_len: count };
    // SAFETY: the caller vouches for the buffer.
    result(unsafe { receive_parts(fd, connection, &[part], flags) })
}

/// `readv`.
///
/// # Safety
/// Same as for `readv`.
pub unsafe fn receive_vector(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { real::readv(fd, parts, count) };
    };
    // SAFETY: the caller vouches for the parts.
    let parts = unsafe { vector(parts, count as usize) };
    if parts.is_ok_and(|parts| parts.iter().all(|part| part.iov_len == 0)) {
        return 0; // as read(2)
    }
    // SAFETY: as above.
    result(parts.and_then(|parts| unsafe { receive_parts(fd, connection, parts, 0) }))
}

/// `recvmsg`, without ancillary data and address.
///
/// # Safety
/// Same as for `recvmsg`.
pub unsafe fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let connection = connections::of_descriptor(fd);
    // SAFETY: the caller vouches for the message.
    let (Some(connection), Some(header)) = (connection, unsafe { message.as_mut() }) else {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { real::recvmsg(fd, message, flags) };
    };
    (header.msg_namelen, header.msg_controllen, header.msg_flags) = (0, 0, 0);
    // SAFETY: the caller vouches for the parts.
    let parts = unsafe { vector(header.msg_iov, header.msg_iovlen) };
    // SAFETY: as above.
    result(parts.and_then(|parts| unsafe { receive_parts(fd, connection, parts, flags) }))
}

/// `recvfrom`; a stream returns no address.
///
/// # Safety
/// Same as for `recvfrom`.
pub unsafe fn receive_from(
    fd: c_int,
    buffer: *mut c_void,
    count: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { real::recvfrom(fd, buffer, count, flags, from, from_length) };
    };
    // SAFETY: the caller vouches for the pointer.
    if let Some(length) = unsafe { from_length.as_mut() } {
        *length = 0;
    }
    let part = iovec { iov_base: buffer, iov_len: count };
    // SAFETY: the caller vouches for the buffer.
    result(unsafe { receive_parts(fd, connection, &[part], flags) })
}

/// `write`, `send` and equivalent calls.
///
/// # Safety
/// Same as for `send`.
pub unsafe fn send(fd: c_int, buffer: *const c_void, count: usize, flags: c_int) -> ssize_t {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe {
            if flags == 0 { real::write(fd, buffer, count) } else { real::send(fd, buffer, count, flags) }
        };
    };
    let part = iovec { iov_base: buffer.cast_mut(), iov_len: count };
    // SAFETY: the caller vouches for the buffer.
    result(unsafe { send_parts(fd, connection, &[part], flags) })
}

/// `writev`.
///
/// # Safety
/// Same as for `writev`.
pub unsafe fn send_vector(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { real::writev(fd, parts, count) };
    };
    // SAFETY: the caller vouches for the parts.
    let parts = unsafe { vector(parts, count as usize) };
    // SAFETY: as above.
    result(parts.and_then(|parts| unsafe { send_parts(fd, connection, parts, 0) }))
}

/// `sendmsg`.
///
/// # Safety
/// Same as for `sendmsg`.
pub unsafe fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let connection = connections::of_descriptor(fd);
    // SAFETY: the caller vouches for the message.
    let (Some(connection), Some(header)) = (connection, unsafe { message.as_ref() }) else {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { real::sendmsg(fd, message, flags) };
    };
    // SAFETY: the caller vouches for the parts.
    let parts = unsafe { vector(header.msg_iov, header.msg_iovlen) };
    // SAFETY: as above.
    result(parts.and_then(|parts| unsafe { send_parts(fd, connection, parts, flags) }))
}

/// # Safety
/// `parts` points at `count` parts, if `count` is at most [`PARTS_MAX`].
pub(crate) unsafe fn vector<'a>(parts: *const iovec, count: usize) -> Result<&'a [iovec], Errno> {
    match count {
        0 => Ok(&[]),
        1..=PARTS_MAX if !parts.is_null() => {
            // SAFETY: the caller vouches for the parts.
            Ok(unsafe { core::slice::from_raw_parts(parts, count) })
        }
        _ => Err(libc::EINVAL),
    }
}

unsafe fn receive_parts(
    fd: c_int,
    connection: &'static Connection,
    parts: &[iovec],
    flags: c_int,
) -> Result<usize, Errno> {
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return Err(if flags & libc::MSG_OOB != 0 { libc::EINVAL } else { libc::EAGAIN });
    }
    // SAFETY: the caller vouches for the parts.
    match unsafe { receive_once(fd, connection, parts, flags) } {
        Ok(bytes) if flags & libc::MSG_WAITALL == 0 || flags & libc::MSG_PEEK != 0 => Ok(bytes),
        Err(error) if error != libc::EAGAIN || is_nonblocking(connection, flags) => Err(error),
        // SAFETY: as above.
        first => unsafe { blocking::receive_rest(fd, connection, parts, flags, first.unwrap_or(0)) },
    }
}

unsafe fn send_parts(
    fd: c_int,
    connection: &'static Connection,
    parts: &[iovec],
    flags: c_int,
) -> Result<usize, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if !is_nonblocking(connection, flags) {
        // SAFETY: the caller vouches for the parts.
        return unsafe { blocking::send_all(fd, connection, parts) };
    }
    let mut wakes = Wakes::default();
    // SAFETY: as above.
    let outcome = unsafe { links::send(fd, connection, parts, &mut wakes) };
    links::run_deferred(&mut wakes);
    outcome
}

/// `sendto`; a stream ignores the address.
///
/// # Safety
/// Same as for `sendto`.
pub unsafe fn send_to(
    fd: c_int,
    buffer: *const c_void,
    count: usize,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    if connections::of_descriptor(fd).is_none() {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { real::sendto(fd, buffer, count, flags, to, to_length) };
    }
    // SAFETY: same as for `send`.
    unsafe { send(fd, buffer, count, flags) }
}
