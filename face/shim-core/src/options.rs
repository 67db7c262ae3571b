//! Socket options of virtual connections.
//!
//! The descriptors of virtual connections share one socket, so options are kept for each connection. An option is first
//! set on a private trial socket, to check the option and to read back its value: the kernel doubles buffer sizes, for
//! instance.

use core::mem::size_of;
use core::sync::atomic::Ordering;
use std::sync::Mutex;

use libc::{c_int, c_void, socklen_t};

use crate::connections::{self, Connection};
use crate::option_values::VALUE_BYTES_MAX;
use crate::sys::{self, Errno};
use crate::table::{self, Entry};
use crate::{lock, real};

/// One trial socket for each address family.
static TRIALS: Mutex<[c_int; 2]> = Mutex::new([-1; 2]);

/// Whether a connection inherits this option from its listener.
fn is_inherited(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_KEEPALIVE | libc::SO_RCVBUF | libc::SO_SNDBUF | libc::SO_LINGER | libc::SO_PRIORITY
        ),
        libc::IPPROTO_TCP => matches!(
            name,
            libc::TCP_NODELAY | libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT | libc::TCP_CORK
        ),
        _ => false,
    }
}

/// `getsockopt`. SO_ERROR is ECONNRESET after a reset that no read has reported yet, otherwise 0.
///
/// # Safety
/// Same as for `getsockopt`.
pub unsafe fn option(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { real::getsockopt(fd, level, name, value, length) };
    };
    if value.is_null() || length.is_null() {
        sys::set_errno(libc::EFAULT);
        return -1;
    }
    let mut inner = connection.lock();
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
        let reset = core::mem::take(&mut inner.reset);
        let error: c_int = if reset { libc::ECONNRESET } else { 0 };
        // SAFETY: the caller vouches for the value and its length.
        return unsafe { answer(&error.to_ne_bytes(), value, length) };
    }
    if let Some(kept) = inner.options.kept(level, name) {
        // SAFETY: as above.
        return unsafe { answer(kept, value, length) };
    }
    let listener = inner.options.listener().filter(|&listener| {
        is_inherited(level, name) && matches!(table::entry(listener), Entry::Listener(_))
    });
    drop(inner);
    // SAFETY: passes the caller's arguments on unchanged, to a socket of the same kind.
    let outcome = unsafe { real::getsockopt(listener.unwrap_or(fd), level, name, value, length) };
    // SAFETY: as above. The structure's first byte is the state.
    if outcome == 0 && (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO) && unsafe { *length } > 0 {
        const ESTABLISHED: u8 = 1; // TCP_ESTABLISHED
        const CLOSE_WAIT: u8 = 8; // TCP_CLOSE_WAIT
        let ended = connection.lock().ended;
        // SAFETY: as above.
        unsafe { value.cast::<u8>().write(if ended { CLOSE_WAIT } else { ESTABLISHED }) };
    }
    outcome
}

/// # Safety
/// `value` has `*length` writable bytes.
unsafe fn answer(bytes: &[u8], value: *mut c_void, length: *mut socklen_t) -> c_int {
    // SAFETY: the caller vouches for `*length` bytes; no more are written.
    unsafe {
        let count = (*length as usize).min(bytes.len());
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast::<u8>(), count);
        *length = count as socklen_t;
    }
    0
}

/// `setsockopt`.
///
/// # Safety
/// Same as for `setsockopt`.
pub unsafe fn set_option(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { real::setsockopt(fd, level, name, value, length) };
    };
    let before = sys::errno();
    // SAFETY: the caller vouches for the value.
    let outcome = unsafe { set_virtual(connection, fd, level, name, value, length) };
    sys::result(before, outcome.map(|()| 0))
}

unsafe fn set_virtual(
    connection: &Connection,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Result<(), Errno> {
    // Zero-copy sending reports completion on an error queue, which virtual connections do not have.
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ZEROCOPY) {
        return Err(libc::EOPNOTSUPP);
    }
    let family = sys::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)?;
    let mut kept = [0u8; VALUE_BYTES_MAX];
    let mut kept_length = kept.len() as socklen_t;
    {
        let mut trials = lock(&TRIALS);
        let trial = &mut trials[usize::from(family == libc::AF_INET6)];
        if *trial < 0 {
            let socket = sys::stream_socket(family)?;
            table::record(socket, Entry::Library);
            *trial = socket;
        }
        // SAFETY: passes the caller's arguments on unchanged, to a socket of the same kind.
        if unsafe { real::setsockopt(*trial, level, name, value, length) } != 0 {
            return Err(sys::errno());
        }
        // SAFETY: `kept` has `kept_length` bytes.
        let read =
            unsafe { real::getsockopt(*trial, level, name, kept.as_mut_ptr().cast(), &raw mut kept_length) };
        if read != 0 {
            kept_length = 0;
        }
    }
    let mut inner = connection.lock();
    if kept_length > 0 {
        inner.options.keep(level, name, &kept[..(kept_length as usize).min(VALUE_BYTES_MAX)]);
    }
    if level == libc::SOL_SOCKET {
        // The kernel has accepted these values, so they have the right size and type.
        match name {
            libc::SO_LINGER if length as usize >= size_of::<libc::linger>() => {
                // SAFETY: the caller vouches for `length` bytes.
                let linger = unsafe { value.cast::<libc::linger>().read_unaligned() };
                inner.abort = linger.l_onoff != 0 && linger.l_linger == 0;
            }
            libc::SO_RCVTIMEO if length as usize >= size_of::<libc::timeval>() => {
                // SAFETY: as above.
                inner.options.receive_timeout_ms =
                    milliseconds(unsafe { value.cast::<libc::timeval>().read_unaligned() });
            }
            libc::SO_SNDTIMEO if length as usize >= size_of::<libc::timeval>() => {
                // SAFETY: as above.
                inner.options.send_timeout_ms =
                    milliseconds(unsafe { value.cast::<libc::timeval>().read_unaligned() });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Converts to milliseconds, rounded up: a very short time must not become 0, which means no timeout.
fn milliseconds(time: libc::timeval) -> u64 {
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    u64::try_from(time.tv_sec).unwrap_or(0).saturating_mul(1000).saturating_add(micros.div_ceil(1000))
}

/// `fcntl(F_SETFL)`: changes the flags that the kernel allows to change on a socket.
pub(crate) fn set_status(connection: &Connection, flags: c_int) {
    const CHANGEABLE: c_int =
        libc::O_NONBLOCK | libc::O_APPEND | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME;
    connection.status.store(libc::O_RDWR | flags & CHANGEABLE, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_rounded_up() {
        let time = |tv_sec, tv_usec| milliseconds(libc::timeval { tv_sec, tv_usec });
        assert_eq!([time(0, 0), time(0, 1), time(2, 1000), time(-1, 0)], [0, 1, 2001, 0]);
    }
}
