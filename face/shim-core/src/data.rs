//! Reading and writing virtual connections.

use core::sync::atomic::Ordering;
use core::time::Duration;

use libc::{c_int, c_void, iovec, msghdr, sockaddr, socklen_t, ssize_t};

use crate::connections::{self, Connection, IN, OUT};
use crate::ready::Wakes;
use crate::sys::{self, Errno};
use crate::table::{self, Entry};
use crate::{address, links, real};

/// Parts of one call; Linux's UIO_MAXIOV.
const PARTS_MAX: usize = 1024;

/// How long a blocked thread waits before it looks again whether another thread has received for it.
const BLOCKED_LOOK_MS: u32 = 5;

/// The C result of a call; errno only when it failed.
fn result(before: Errno, outcome: Result<usize, Errno>) -> ssize_t {
    match outcome {
        Ok(count) => {
            sys::set_errno(before);
            count as ssize_t
        }
        Err(error) => {
            sys::set_errno(error);
            -1
        }
    }
}

/// `read`, `recv` and what comes down to them.
///
/// # Safety
/// As of `recv`.
pub unsafe fn receive(fd: c_int, buffer: *mut c_void, count: usize, flags: c_int) -> ssize_t {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: the call as it came, on a descriptor that is a socket or reads as one.
        return unsafe {
            if flags == 0 { real::read(fd, buffer, count) } else { real::recv(fd, buffer, count, flags) }
        };
    };
    let before = sys::errno();
    let part = iovec { iov_base: buffer, iov_len: count };
    // SAFETY: the caller vouches for the buffer.
    result(before, unsafe { receive_parts(fd, connection, &[part], flags) })
}

/// `readv`.
///
/// # Safety
/// As of `readv`.
pub unsafe fn receive_vector(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: the call as it came.
        return unsafe { real::readv(fd, parts, count) };
    };
    let before = sys::errno();
    // SAFETY: the caller vouches for the parts.
    let parts = unsafe { vector(parts, count as usize) };
    // SAFETY: as above.
    result(before, parts.and_then(|parts| unsafe { receive_parts(fd, connection, parts, 0) }))
}

/// `recvmsg`: no ancillary data, no address.
///
/// # Safety
/// As of `recvmsg`.
pub unsafe fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let connection = connections::of_descriptor(fd);
    // SAFETY: the caller vouches for the message.
    let (Some(connection), Some(header)) = (connection, unsafe { message.as_mut() }) else {
        // SAFETY: the call as it came.
        return unsafe { real::recvmsg(fd, message, flags) };
    };
    let before = sys::errno();
    (header.msg_namelen, header.msg_controllen, header.msg_flags) = (0, 0, 0);
    // SAFETY: the caller vouches for the parts.
    let parts = unsafe { vector(header.msg_iov, header.msg_iovlen) };
    // SAFETY: as above.
    result(before, parts.and_then(|parts| unsafe { receive_parts(fd, connection, parts, flags) }))
}

/// `recvfrom`: a stream names no address.
///
/// # Safety
/// As of `recvfrom`.
pub unsafe fn receive_from(
    fd: c_int,
    buffer: *mut c_void,
    count: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: the call as it came.
        return unsafe { real::recvfrom(fd, buffer, count, flags, from, from_length) };
    };
    let before = sys::errno();
    // SAFETY: the caller vouches for the pointer.
    if let Some(length) = unsafe { from_length.as_mut() } {
        *length = 0;
    }
    let part = iovec { iov_base: buffer, iov_len: count };
    // SAFETY: the caller vouches for the buffer.
    result(before, unsafe { receive_parts(fd, connection, &[part], flags) })
}

/// `write`, `send` and what comes down to them.
///
/// # Safety
/// As of `send`.
pub unsafe fn send(fd: c_int, buffer: *const c_void, count: usize, flags: c_int) -> ssize_t {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: the call as it came.
        return unsafe {
            if flags == 0 { real::write(fd, buffer, count) } else { real::send(fd, buffer, count, flags) }
        };
    };
    let before = sys::errno();
    let part = iovec { iov_base: buffer.cast_mut(), iov_len: count };
    // SAFETY: the caller vouches for the buffer.
    result(before, unsafe { send_parts(fd, connection, &[part], flags) })
}

/// `writev`.
///
/// # Safety
/// As of `writev`.
pub unsafe fn send_vector(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: the call as it came.
        return unsafe { real::writev(fd, parts, count) };
    };
    let before = sys::errno();
    // SAFETY: the caller vouches for the parts.
    let parts = unsafe { vector(parts, count as usize) };
    // SAFETY: as above.
    result(before, parts.and_then(|parts| unsafe { send_parts(fd, connection, parts, 0) }))
}

/// `sendmsg`.
///
/// # Safety
/// As of `sendmsg`.
pub unsafe fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let connection = connections::of_descriptor(fd);
    // SAFETY: the caller vouches for the message.
    let (Some(connection), Some(header)) = (connection, unsafe { message.as_ref() }) else {
        // SAFETY: the call as it came.
        return unsafe { real::sendmsg(fd, message, flags) };
    };
    let before = sys::errno();
    // SAFETY: the caller vouches for the parts.
    let parts = unsafe { vector(header.msg_iov, header.msg_iovlen) };
    // SAFETY: as above.
    result(before, parts.and_then(|parts| unsafe { send_parts(fd, connection, parts, flags) }))
}

/// # Safety
/// `parts` points at `count` parts, unless that is too many.
unsafe fn vector<'a>(parts: *const iovec, count: usize) -> Result<&'a [iovec], Errno> {
    match count {
        0 => Ok(&[]),
        1..=PARTS_MAX if !parts.is_null() => {
            // SAFETY: the caller vouches for them.
            Ok(unsafe { core::slice::from_raw_parts(parts, count) })
        }
        _ => Err(libc::EINVAL),
    }
}

unsafe fn receive_parts(
    fd: c_int,
    connection: &Connection,
    parts: &[iovec],
    flags: c_int,
) -> Result<usize, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(libc::EINVAL);
    }
    let mut blocked = Blocked { fd, since: None };
    loop {
        // SAFETY: the caller vouches for the parts.
        match unsafe { connection.read(parts, flags & libc::MSG_PEEK != 0) } {
            Ok(read) => {
                if read.report > 0 {
                    let mut wakes = Wakes::default();
                    links::consumed(connection, read.report, &mut wakes);
                    wakes.send();
                }
                return Ok(read.bytes);
            }
            Err(libc::EAGAIN) if !is_nonblocking(connection, flags) => {
                let timeout_ms = connection.lock().receive_timeout_ms;
                blocked.wait(connection, IN, timeout_ms)?;
            }
            Err(error) => return Err(error),
        }
    }
}

unsafe fn send_parts(
    fd: c_int,
    connection: &Connection,
    parts: &[iovec],
    flags: c_int,
) -> Result<usize, Errno> {
    let mut wakes = Wakes::default();
    if is_nonblocking(connection, flags) {
        // SAFETY: the caller vouches for the parts.
        let outcome = unsafe { links::send(connection, parts, &mut wakes) };
        wakes.send();
        return outcome;
    }
    // A blocking descriptor takes everything.
    let mut blocked = Blocked { fd, since: None };
    let mut sent = 0;
    for part in parts {
        let mut part = *part;
        while part.iov_len > 0 {
            // SAFETY: as above; the part shrinks within itself.
            let outcome = unsafe { links::send(connection, &[part], &mut wakes) };
            wakes.send();
            match outcome {
                Ok(taken) => {
                    // SAFETY: `taken` is at most the part's length.
                    part.iov_base = unsafe { part.iov_base.byte_add(taken) };
                    part.iov_len -= taken;
                    sent += taken;
                }
                Err(libc::EAGAIN) => {
                    let timeout_ms = connection.lock().send_timeout_ms;
                    if let Err(error) = blocked.wait(connection, OUT, timeout_ms) {
                        return if sent > 0 { Ok(sent) } else { Err(error) };
                    }
                }
                Err(_) if sent > 0 => return Ok(sent),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(sent)
}

fn is_nonblocking(connection: &Connection, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT != 0 || connection.nonblocking.load(Ordering::Relaxed)
}

/// A call on a blocking descriptor that has to wait. The thread looks after the link itself, because it may be
/// the one that would receive for everybody.
struct Blocked {
    fd: c_int,
    since: Option<spillway_transport::Time>,
}

impl Blocked {
    /// Returns when one of `bits` may be there. EAGAIN after `timeout_ms`, 0 for never.
    fn wait(&mut self, connection: &Connection, bits: u32, timeout_ms: u64) -> Result<(), Errno> {
        let now = sys::now();
        let since = *self.since.get_or_insert(now);
        if timeout_ms > 0 && now.since(since) >= Duration::from_millis(timeout_ms) {
            return Err(libc::EAGAIN);
        }
        let mut wakes = Wakes::default();
        links::flush_deferred(&mut wakes);
        wakes.send();
        if table::entry(self.fd) != Entry::Connection(connection.index) {
            return Err(libc::EBADF); // closed by another thread
        }
        if connection.source.state() & bits != 0 {
            return Ok(());
        }
        let (socket, wants_out) = links::socket_of(connection);
        let events = libc::POLLIN | if wants_out { libc::POLLOUT } else { 0 };
        let mut descriptor = [libc::pollfd { fd: socket, events, revents: 0 }];
        if let Err(libc::EINTR) = sys::poll(&mut descriptor, BLOCKED_LOOK_MS) {
            return Err(libc::EINTR);
        }
        if descriptor[0].revents != 0 {
            links::attend(connection, &mut wakes);
            wakes.send();
        }
        Ok(())
    }
}

/// `sendto`: a stream ignores the address.
///
/// # Safety
/// As of `sendto`.
pub unsafe fn send_to(
    fd: c_int,
    buffer: *const c_void,
    count: usize,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    if connections::of_descriptor(fd).is_none() {
        // SAFETY: the call as it came.
        return unsafe { real::sendto(fd, buffer, count, flags, to, to_length) };
    }
    // SAFETY: as of `send`.
    unsafe { send(fd, buffer, count, flags) }
}

/// Where an accepted connection's client address goes.
///
/// # Safety
/// As of `accept`.
pub(crate) unsafe fn fill_client(connection: &Connection, out: *mut sockaddr, length: *mut socklen_t) {
    let client = connection.lock().client;
    if let Some(client) = client {
        // SAFETY: the caller vouches for both.
        unsafe { address::fill(client, out, length) };
    }
}
