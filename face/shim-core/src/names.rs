//! Addresses and socket options of virtual connections.

use core::mem::size_of;

use libc::{c_int, c_void, sockaddr, socklen_t};

use crate::{address, connections, data, descriptors, real, sys};

/// `getpeername`: the client.
///
/// # Safety
/// As of `getpeername`.
pub unsafe fn peer_name(fd: c_int, out: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: the call as it came.
        return unsafe { real::getpeername(fd, out, length) };
    };
    // SAFETY: as of `getpeername`.
    unsafe { data::fill_client(connection, out, length) };
    0
}

/// `getsockname`: the server's address as the client knows it.
///
/// # Safety
/// As of `getsockname`.
pub unsafe fn socket_name(fd: c_int, out: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: the call as it came.
        return unsafe { real::getsockname(fd, out, length) };
    };
    let local = connection.lock().local;
    if let Some(local) = local {
        // SAFETY: as of `getsockname`.
        unsafe { address::fill(local, out, length) };
    }
    0
}

/// `getsockopt`. Errors come with reads, so SO_ERROR is always 0 unless a reset waits to be read; the rest is
/// answered by the socket behind the descriptor.
///
/// # Safety
/// As of `getsockopt`.
pub unsafe fn option(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let connection = connections::of_descriptor(fd);
    let (Some(connection), libc::SOL_SOCKET, libc::SO_ERROR) = (connection, level, name) else {
        // SAFETY: the call as it came.
        return unsafe { real::getsockopt(fd, level, name, value, length) };
    };
    if value.is_null() || length.is_null() {
        sys::set_errno(libc::EFAULT);
        return -1;
    }
    let reset = core::mem::take(&mut connection.lock().reset);
    let error: c_int = if reset { libc::ECONNRESET } else { 0 };
    // SAFETY: the caller vouches for `*length` bytes; no more are written.
    unsafe {
        let count = (*length as usize).min(size_of::<c_int>());
        core::ptr::copy_nonoverlapping((&raw const error).cast::<u8>(), value.cast::<u8>(), count);
        *length = count as socklen_t;
    }
    0
}

/// `setsockopt`. What matters to a virtual connection is noted; the rest goes to the socket behind the
/// descriptor, which carries nothing, so that a wrong option fails as it should.
///
/// # Safety
/// As of `setsockopt`.
pub unsafe fn set_option(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    if let Some(connection) = connections::of_descriptor(fd)
        && level == libc::SOL_SOCKET
        && !value.is_null()
    {
        let length = length as usize;
        match name {
            libc::SO_LINGER if length >= size_of::<libc::linger>() => {
                // SAFETY: the caller vouches for `length` bytes.
                let linger = unsafe { value.cast::<libc::linger>().read_unaligned() };
                descriptors::set_abort(connection, linger.l_onoff != 0 && linger.l_linger == 0);
            }
            libc::SO_RCVTIMEO | libc::SO_SNDTIMEO if length >= size_of::<libc::timeval>() => {
                // SAFETY: as above.
                let time = unsafe { value.cast::<libc::timeval>().read_unaligned() };
                let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
                let ms = seconds
                    .saturating_mul(1000)
                    .saturating_add(u64::try_from(time.tv_usec).unwrap_or(0) / 1000);
                let mut inner = connection.lock();
                if name == libc::SO_RCVTIMEO {
                    inner.receive_timeout_ms = ms;
                } else {
                    inner.send_timeout_ms = ms;
                }
                return 0;
            }
            _ => {}
        }
    }
    // SAFETY: the call as it came.
    unsafe { real::setsockopt(fd, level, name, value, length) }
}
