//! `sendfile` and `splice` on virtual connections. The kernel has no virtual connections, so `sendfile` copies the
//! bytes in this library, and `splice` fails.

use core::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_uint, loff_t, off_t, ssize_t};

use crate::sys::{self, Errno};
use crate::{connections, data, log, real};

/// Maximum number of bytes in one read of the file.
const PORTION_BYTES: usize = 64 * 1024;

/// `sendfile`. To a virtual connection: reads the file and sends the bytes. From a virtual connection it fails with
/// EINVAL, as from any socket.
///
/// # Safety
/// Same as for the C function.
pub unsafe fn send_file(out: c_int, file: c_int, offset: *mut off_t, count: usize) -> ssize_t {
    if connections::of_descriptor(out).is_none() {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { real::sendfile(out, file, offset, count) };
    }
    // SAFETY: the caller vouches for the offset.
    data::result(unsafe { copy(out, file, offset, count) })
}

unsafe fn copy(out: c_int, file: c_int, offset: *mut off_t, count: usize) -> Result<usize, Errno> {
    // SAFETY: the caller vouches for the pointer.
    let given = unsafe { offset.as_mut() };
    let mut position = match &given {
        Some(offset) => **offset,
        None => sys::position(file).map_err(|_| libc::EINVAL)?, // a pipe or a socket
    };
    let mut buffer = vec![0u8; PORTION_BYTES.min(count)];
    let mut sent = 0;
    let mut outcome = Ok(());
    while sent < count {
        let wanted = buffer.len().min(count - sent);
        let length = match sys::read_at(file, &mut buffer[..wanted], position) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) => {
                outcome = Err(if error == libc::ESPIPE { libc::EINVAL } else { error });
                break;
            }
        };
        // SAFETY: the buffer is this function's.
        let written = unsafe { data::send(out, buffer.as_ptr().cast(), length, 0) };
        let Ok(written) = usize::try_from(written) else {
            outcome = Err(sys::errno());
            break;
        };
        (sent, position) = (sent + written, position + written as off_t);
        if written < length {
            break;
        }
    }
    match given {
        Some(offset) => *offset = position,
        None => sys::set_position(file, position)?,
    }
    if sent > 0 { Ok(sent) } else { outcome.map(|()| 0) }
}

/// `splice`. Fails with EINVAL on virtual connections, as on files without `splice`: programs then use other calls.
///
/// # Safety
/// Same as for the C function.
pub unsafe fn splice(
    from: c_int,
    from_offset: *mut loff_t,
    to: c_int,
    to_offset: *mut loff_t,
    count: usize,
    flags: c_uint,
) -> ssize_t {
    if connections::of_descriptor(from).is_none() && connections::of_descriptor(to).is_none() {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { real::splice(from, from_offset, to, to_offset, count, flags) };
    }
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Ordering::Relaxed) {
        log::line(format_args!("splice is not supported on helped connections: it fails with EINVAL"));
    }
    sys::set_errno(libc::EINVAL);
    -1
}
