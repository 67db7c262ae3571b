//! `recvmmsg` and `sendmmsg` on virtual connections: one message after the other.

use libc::{c_int, c_uint, mmsghdr, timespec};

use crate::{connections, data, real, sys};

/// MSG_WAITFORONE: the call blocks for the first message only.
const WAIT_FOR_ONE: c_int = 0x10000;

/// Maximum number of messages in one call; Linux's UIO_MAXIOV.
const MESSAGES_MAX: c_uint = 1024;

/// `recvmmsg`. As in Linux, the timeout is checked only after each message, which may block longer.
///
/// # Safety
/// Same as for the C function.
pub unsafe fn receive(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if connections::of_descriptor(fd).is_none() {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    }
    // SAFETY: the caller vouches for the pointer.
    let limit = unsafe { timeout.as_ref() }.map(sys::duration);
    let began = sys::now();
    let mut flags = flags;
    let receive_one = |message: &mut mmsghdr| {
        // SAFETY: the caller vouches for the message.
        let received = unsafe { data::receive_message(fd, &raw mut message.msg_hdr, flags & !WAIT_FOR_ONE) };
        if flags & WAIT_FOR_ONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        let is_over = received == 0 || limit.is_some_and(|limit| sys::now().since(began) >= limit);
        (received, is_over)
    };
    // SAFETY: the caller vouches for the messages.
    unsafe { one_by_one(messages, count, receive_one) }
}

/// `sendmmsg`.
///
/// # Safety
/// Same as for the C function.
pub unsafe fn send(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if connections::of_descriptor(fd).is_none() {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { real::sendmmsg(fd, messages, count, flags) };
    }
    // SAFETY: the caller vouches for the messages.
    unsafe {
        one_by_one(messages, count, |message| {
            (data::send_message(fd, &raw const message.msg_hdr, flags), false)
        })
    }
}

/// Calls `handle` for each message until one fails. Returns the number of handled messages, -1 if the first fails.
unsafe fn one_by_one(
    messages: *mut mmsghdr,
    count: c_uint,
    mut handle: impl FnMut(&mut mmsghdr) -> (isize, bool),
) -> c_int {
    if messages.is_null() {
        sys::set_errno(libc::EFAULT);
        return -1;
    }
    let before = sys::errno();
    for done in 0..count.min(MESSAGES_MAX) {
        // SAFETY: the caller vouches for `count` messages.
        let message = unsafe { &mut *messages.add(done as usize) };
        let (bytes, is_over) = handle(message);
        if bytes < 0 {
            if done == 0 {
                return -1;
            }
            sys::set_errno(before);
            return done as c_int;
        }
        message.msg_len = bytes as c_uint;
        if is_over {
            return done as c_int + 1;
        }
    }
    count.min(MESSAGES_MAX) as c_int
}
