//! What the kernel says about a socket.

use std::os::fd::{AsFd, AsRawFd};

/// Bytes that were not sent.
pub fn unsent(fd: &impl AsFd) -> u32 {
    const SIOCOUTQNSD: libc::Ioctl = 0x894b;
    queued(fd, SIOCOUTQNSD)
}

/// Bytes that the peer has not acknowledged.
pub fn unacknowledged(fd: &impl AsFd) -> u32 {
    queued(fd, libc::TIOCOUTQ)
}

fn queued(fd: &impl AsFd, request: libc::Ioctl) -> u32 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: both requests write one int to the argument's address.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, &raw mut bytes) };
    assert_eq!(result, 0);
    bytes.try_into().unwrap()
}

pub fn info(fd: &impl AsFd) -> libc::tcp_info {
    // SAFETY: `tcp_info` consists of integers, for which all-zero bytes are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of `info`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0);
    info
}

/// Sets an option to the bytes of a value.
pub fn set_option<T: Copy>(fd: &impl AsFd, level: libc::c_int, name: libc::c_int, value: &T) -> libc::c_int {
    // SAFETY: the kernel reads the bytes of `value`, which outlives the call.
    unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    }
}
