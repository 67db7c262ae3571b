//! Reads and writes on blocking descriptors that have to wait.

use core::ptr;
use core::time::Duration;

use libc::{c_int, iovec};
use spillway_transport::Time;

use crate::blocked::Blocked;
use crate::connections::Connection;
use crate::links;
use crate::nonblocking::{is_nonblocking, receive_once};
use crate::readiness::{IN, OUT};
use crate::sys::{self, Errno};
use crate::wakes::Wakes;

/// Continues a read that has received `received` bytes: waits for the first byte, or for all bytes (MSG_WAITALL). A
/// peek returns what there is after the first wait, also with MSG_WAITALL, where the kernel would wait for all bytes.
///
/// # Safety
/// `parts` describe writable memory.
#[cold]
pub(crate) unsafe fn receive_rest(
    fd: c_int,
    connection: &'static Connection,
    parts: &[iovec],
    flags: c_int,
    received: usize,
) -> Result<usize, Errno> {
    let wanted: usize = parts.iter().map(|part| part.iov_len).sum();
    let timeout_ms = connection.lock().options.receive_timeout_ms;
    let mut wait = None;
    let mut received = received;
    while received == 0 || received < wanted {
        // SAFETY: the caller vouches for the parts; these are their unread ends.
        match unsafe { receive_once(fd, connection, &after(parts, received), flags) } {
            Ok(0) => break,
            // Another peek would return the same bytes again.
            Ok(bytes) if flags & libc::MSG_WAITALL == 0 || flags & libc::MSG_PEEK != 0 => return Ok(bytes),
            Ok(bytes) => received += bytes,
            Err(libc::EAGAIN) if !is_nonblocking(connection, flags) => {
                if let Err(error) = Wait::until_ready(&mut wait, connection, timeout_ms, fd, IN) {
                    return if received > 0 { Ok(received) } else { Err(error) };
                }
            }
            Err(_) if received > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(received)
}

/// Sends all bytes; fewer only if the connection ends or the timeout passes.
///
/// # Safety
/// `parts` describe readable memory.
pub(crate) unsafe fn send_all(
    fd: c_int,
    connection: &'static Connection,
    parts: &[iovec],
) -> Result<usize, Errno> {
    let wanted: usize = parts.iter().map(|part| part.iov_len).sum();
    let mut wakes = Wakes::default();
    // SAFETY: the caller vouches for the parts.
    let mut sent = match unsafe { links::send(fd, connection, parts, &mut wakes) } {
        Ok(sent) => sent,
        Err(libc::EAGAIN) => 0,
        Err(error) => return Err(error),
    };
    links::run_deferred(&mut wakes); // wakes the sets that `send` has collected
    if sent == wanted {
        return Ok(sent);
    }
    let timeout_ms = connection.lock().options.send_timeout_ms;
    let mut wait = None;
    while sent < wanted {
        if let Err(error) = Wait::until_ready(&mut wait, connection, timeout_ms, fd, OUT) {
            return if sent > 0 { Ok(sent) } else { Err(error) };
        }
        // SAFETY: as above; these are the unsent ends of the parts.
        match unsafe { links::send(fd, connection, &after(parts, sent), &mut wakes) } {
            Ok(more) => sent += more,
            Err(libc::EAGAIN) => {}
            Err(_) if sent > 0 => break,
            Err(error) => return Err(error),
        }
        links::run_deferred(&mut wakes);
    }
    Ok(sent)
}

/// The parts without their first `bytes`.
fn after(parts: &[iovec], bytes: usize) -> Vec<iovec> {
    let mut left = bytes;
    let rest = parts.iter().map(|part| {
        let skipped = part.iov_len.min(left);
        left -= skipped;
        iovec { iov_base: part.iov_base.wrapping_byte_add(skipped), iov_len: part.iov_len - skipped }
    });
    rest.filter(|part| part.iov_len > 0).collect()
}

/// The state of a call that waits.
struct Wait {
    since: Time,
    blocked: Blocked,
}

impl Wait {
    /// Returns when one of the readiness bits `bits` may be set. The first call returns at once. EAGAIN after
    /// `timeout_ms`; 0 waits without limit.
    fn until_ready(
        wait: &mut Option<Wait>,
        connection: &'static Connection,
        timeout_ms: u64,
        fd: c_int,
        bits: u32,
    ) -> Result<(), Errno> {
        let Wait { since, blocked } = match wait {
            Some(wait) => wait,
            None => {
                *wait = Some(Wait { since: sys::now(), blocked: Blocked::new(vec![connection]) });
                // From here on, a change wakes this thread. An earlier change does not: so the caller tries once more,
                // and sleeps in the next call.
                return Ok(());
            }
        };
        let left = match timeout_ms {
            0 => None,
            ms => {
                let left = Duration::from_millis(ms).saturating_sub(sys::now().since(*since));
                if left.is_zero() {
                    return Err(libc::EAGAIN);
                }
                Some(left)
            }
        };
        if !connection.has_descriptor(fd) {
            return Err(libc::EBADF); // closed by another thread
        }
        if connection.readiness.own_state() & bits != 0 {
            return Ok(());
        }
        blocked.sleep(&mut Vec::new(), left, ptr::null())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_skips_bytes_at_the_front() {
        let mut bytes = [0u8; 10];
        let base: *mut libc::c_void = bytes.as_mut_ptr().cast();
        let part = |offset: usize, iov_len| iovec { iov_base: base.wrapping_byte_add(offset), iov_len };
        let parts = [part(0, 3), part(3, 0), part(3, 4)];
        let left = |received| -> Vec<(usize, usize)> {
            let rest = after(&parts, received);
            rest.iter().map(|part| (part.iov_base as usize - base as usize, part.iov_len)).collect()
        };
        assert_eq!(left(0), [(0, 3), (3, 4)]);
        assert_eq!(left(2), [(2, 1), (3, 4)]);
        assert_eq!(left(3), [(3, 4)]);
        assert_eq!(left(7), []);
    }
}
