//! The options of a socket that travel with its connection's state.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::sockopt;
use spillway_wire::state::{Buffer, KeepAlive, QUEUE_BYTES_MAX, SocketOptions};

use crate::eligible::Eligible;
use crate::error::{CaptureError, system};
use crate::system::{SO_BUF_LOCK, get, set};

/// Longest buffer that is asked for, in bytes, which the kernel doubles: room for the longest queue of a state. States come from
/// other servers, which must not fill this host's memory.
const BUFFER_BYTES_MAX: usize = QUEUE_BYTES_MAX;
/// The application has set the size of the send buffer (SOCK_SNDBUF_LOCK).
const SEND_BUFFER_IS_FIXED: libc::c_int = 1;
/// The application has set the size of the receive buffer (SOCK_RCVBUF_LOCK).
const RECEIVE_BUFFER_IS_FIXED: libc::c_int = 2;

/// Keep-alive probes of a new socket, if the host's administrator has set no other times (tcp(7)).
const KEEP_ALIVE_OF_LINUX: KeepAlive = KeepAlive {
    is_on: false,
    idle: Duration::from_secs(7_200),
    interval: Duration::from_secs(75),
    probes: 9,
};

/// Room that a restored connection needs in its socket's buffers, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needed {
    /// For the send queue.
    pub sending: usize,
    /// For the unread bytes, and for those that the peer may send.
    pub receiving: usize,
}

/// Reads the options of a socket that is not in repair mode, which would change SO_REUSEADDR. Some are in its diagnosis.
pub(crate) fn read(fd: &OwnedFd, eligible: &Eligible) -> Result<SocketOptions, CaptureError> {
    let diagnosed = &eligible.diagnosed;
    let read = || -> io::Result<SocketOptions> {
        let locks = buffer_locks(fd)?;
        let buffer = |bytes, lock| Buffer { bytes, is_fixed: locks & lock != 0 };
        Ok(SocketOptions {
            no_delay: Some(sockopt::tcp_nodelay(fd)?),
            cork: Some(sockopt::tcp_cork(fd)?),
            keep_alive: Some(KeepAlive {
                is_on: sockopt::socket_keepalive(fd)?,
                idle: sockopt::tcp_keepidle(fd)?,
                interval: sockopt::tcp_keepintvl(fd)?,
                probes: sockopt::tcp_keepcnt(fd)?,
            })
            .filter(|keep_alive| *keep_alive != KEEP_ALIVE_OF_LINUX),
            user_timeout_ms: Some(sockopt::tcp_user_timeout(fd)?),
            congestion_control: diagnosed.congestion_control.clone(),
            send_buffer: Some(buffer(diagnosed.send_buffer, SEND_BUFFER_IS_FIXED)),
            receive_buffer: Some(buffer(diagnosed.receive_buffer, RECEIVE_BUFFER_IS_FIXED)),
            reuses_address: Some(sockopt::socket_reuseaddr(fd)?),
            is_nonblocking: fcntl_getfl(fd)?.contains(OFlags::NONBLOCK),
            has_ended_reading: eligible.has_ended_reading(),
            has_microsecond_stamps: diagnosed.info.has_microsecond_stamps,
        })
    };
    read().map_err(system("read the socket's options"))
}

/// Sets the options of a new socket before it is connected, except those of [`finish`]. The buffers have
/// room for `needed`, and keep their size until then. Returns whether the congestion control is as wanted.
pub(crate) fn apply(options: &SocketOptions, fd: &OwnedFd, needed: Needed) -> Result<bool, CaptureError> {
    let apply = || -> io::Result<bool> {
        let bytes = |buffer: Option<Buffer>| buffer.map(|buffer| buffer.bytes);
        let send_default =
            bytes(options.send_buffer).map_or_else(|| sockopt::socket_send_buffer_size(fd), Ok)?;
        let receive_default =
            bytes(options.receive_buffer).map_or_else(|| sockopt::socket_recv_buffer_size(fd), Ok)?;
        sockopt::set_socket_send_buffer_size_force(fd, asked(send_default, needed.sending))?;
        sockopt::set_socket_recv_buffer_size_force(fd, asked(receive_default, needed.receiving))?;
        // A new socket has none of these.
        if options.no_delay == Some(true) {
            sockopt::set_tcp_nodelay(fd, true)?;
        }
        if options.cork == Some(true) {
            sockopt::set_tcp_cork(fd, true)?;
        }
        if let Some(keep_alive) = options.keep_alive {
            sockopt::set_tcp_keepidle(fd, keep_alive.idle)?;
            sockopt::set_tcp_keepintvl(fd, keep_alive.interval)?;
            sockopt::set_tcp_keepcnt(fd, keep_alive.probes)?;
            if keep_alive.is_on {
                sockopt::set_socket_keepalive(fd, true)?;
            }
        }
        if let Some(timeout_ms) = options.user_timeout_ms
            && timeout_ms != 0
        {
            sockopt::set_tcp_user_timeout(fd, timeout_ms)?;
        }
        if options.is_nonblocking {
            fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
        }
        match &options.congestion_control {
            None => Ok(true),
            // A name that this host does not have.
            Some(name) => Ok(sockopt::set_tcp_congestion(fd, name).is_ok()),
        }
    };
    apply().map_err(system("set the socket's options"))
}

/// Gives the buffers the sizes of the old socket: otherwise they, and the windows with them, would grow with each move. Lets
/// the kernel adjust those again that the application has not fixed.
pub(crate) fn finish(options: &SocketOptions, fd: &OwnedFd, needed: Needed) {
    let enlarged = |buffer: Option<Buffer>, needed| {
        buffer.map(|buffer| buffer.bytes).filter(|bytes| asked(*bytes, needed) > bytes / 2)
    };
    // These calls cannot fail, because others of their kind have not.
    if let Some(bytes) = enlarged(options.send_buffer, needed.sending) {
        let _ = sockopt::set_socket_send_buffer_size_force(fd, bytes / 2);
    }
    if let Some(bytes) = enlarged(options.receive_buffer, needed.receiving) {
        let _ = sockopt::set_socket_recv_buffer_size_force(fd, bytes / 2);
    }
    let lock =
        |buffer: Option<Buffer>, bit| if buffer.is_some_and(|buffer| buffer.is_fixed) { bit } else { 0 };
    let locks = lock(options.send_buffer, SEND_BUFFER_IS_FIXED)
        | lock(options.receive_buffer, RECEIVE_BUFFER_IS_FIXED);
    // Linux before 5.14 has no such option: the buffers keep their size there.
    let _ = set(fd, libc::SOL_SOCKET, SO_BUF_LOCK, locks);
}
/// Which buffers the application has fixed; none on Linux before 5.14, which does not say.
fn buffer_locks(fd: &OwnedFd) -> io::Result<libc::c_int> {
    match get(fd, libc::SOL_SOCKET, SO_BUF_LOCK) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(0),
        result => result,
    }
}

/// The size to ask for, which the kernel doubles: at least that of the old socket, or of this host's default, and room for
/// `needed` bytes, whose overhead is no larger than the bytes.
fn asked(wanted: usize, needed: usize) -> usize {
    (wanted / 2).max(needed).min(BUFFER_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_room_for_the_queues_and_are_bounded() {
        assert_eq!(asked(16_384, 0), 8_192);
        assert_eq!(asked(1_000, 64 << 20), 64 << 20);
        assert_eq!(asked(usize::MAX, usize::MAX), BUFFER_BYTES_MAX);
    }
}
