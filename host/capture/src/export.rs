//! Takes a connection out of a socket.

use std::os::fd::OwnedFd;

use rustix::net::sockopt;
use spillway_wire::state::ConnectionState;

use crate::captured::Captured;
use crate::dump::dump;
use crate::eligible::{self, Eligible};
use crate::error::{CaptureError, Failed};
use crate::filter;
use crate::muted::Muted;
use crate::options::SocketOptions;
use crate::repair::Repair;

/// Captures the connection of a socket: its state, with the bytes that the application has not read and those that the peer
/// has not acknowledged. Sends at most an acknowledgement that the kernel has delayed. From now on the socket drops the peer's
/// segments, without an answer; hold them elsewhere for the connection's next owner.
///
/// No other thread or process may use the socket meanwhile. The application may have read part of a request, which it carries
/// to the new owner itself, for example as the state's attachment.
///
/// # Errors
/// With the socket, whose connection is unchanged: the connection does not move, its queues change constantly, or the
/// process or the kernel lacks something.
pub fn export(socket: impl Into<OwnedFd>) -> Result<Captured, Failed<OwnedFd>> {
    let fd = socket.into();
    match capture(&fd) {
        Ok((state, muted, options)) => Ok(Captured::new(fd, state, muted, options)),
        Err(error) => Err(Failed { kept: fd, error }),
    }
}

fn capture(fd: &OwnedFd) -> Result<(ConnectionState, Muted, SocketOptions), CaptureError> {
    let eligible = eligible::check(fd)?;
    let options = SocketOptions {
        has_ended_reading: eligible.has_ended_reading,
        has_microsecond_stamps: eligible.has_microsecond_stamps,
        ..SocketOptions::read(fd)?
    };
    let repair = Repair::enter(fd)?;
    let result = filtered(repair, fd, &eligible);
    if result.is_err() {
        // The error of the capture is reported; a process that could enter repair mode can also leave it.
        let _ = repair.leave(options.reuses_address.unwrap_or(true));
    }
    let (state, muted) = result?;
    Ok((state, muted, options))
}

fn filtered(
    repair: Repair<'_>,
    fd: &OwnedFd,
    eligible: &Eligible,
) -> Result<(ConnectionState, Muted), CaptureError> {
    eligible::check_sockmap(fd)?;
    acknowledge(fd);
    filter::attach(fd)?;
    let result = dump(repair, fd, eligible);
    if result.is_err() {
        // As above: only a missing filter could be the reason.
        let _ = filter::detach(fd);
    }
    result
}

/// Makes the kernel send an acknowledgement that it delays. Otherwise the captured socket's timer would send it during the
/// move, with a later timestamp than those of the connection's next owner. The kernel still delays it if there are unread
/// bytes: the state says so.
fn acknowledge(fd: &OwnedFd) {
    // Cannot fail: the option takes any number.
    let _ = sockopt::set_tcp_quickack(fd, true);
}
