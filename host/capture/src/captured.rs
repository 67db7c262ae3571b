//! A captured connection, whose socket waits for the end of the move.

use std::os::fd::OwnedFd;

use rustix::net::sockopt;
use spillway_wire::Bytes;
use spillway_wire::state::ConnectionState;

use crate::ends::Ends;
use crate::error::{CaptureError, Failed, system};
use crate::filter;
use crate::held::Held;
use crate::muted::{Muted, unmute};
use crate::options::SocketOptions;
use crate::queues::peek_unread;
use crate::repair::Repair;

/// A connection that was taken out of its socket. The socket stays in repair mode behind a filter that drops all segments, and
/// sends nothing new, because the peer's window counts as closed. Its timers still run: the first unacknowledged segment is
/// sent again after the retransmission timeout, and an acknowledgement that the kernel delays because of unread bytes is
/// sent within 40 ms.
///
/// A drop ends the socket without a segment, as [`close_silently`](Self::close_silently) does.
#[derive(Debug)]
#[must_use = "a drop ends the connection without telling the peer"]
pub struct Captured {
    socket: Held,
    taken: Box<Taken>,
}

/// What a captured socket has received after its state was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Late {
    /// Bytes that follow those of the state.
    pub bytes: Bytes,
    /// The peer has finished after these bytes.
    pub has_fin: bool,
}

/// What was taken out of the socket.
#[derive(Debug)]
struct Taken {
    state: ConnectionState,
    muted: Muted,
    options: SocketOptions,
}

impl Captured {
    pub(crate) fn new(fd: OwnedFd, state: ConnectionState, muted: Muted, options: SocketOptions) -> Captured {
        Captured { socket: Held::new(fd), taken: Box::new(Taken { state, muted, options }) }
    }

    /// The connection's state. `listener` and `attachment` are `None`: the application knows them. `recovery` and TS.Recent
    /// are `None`, too: the kernel does not reveal them.
    pub fn state(&self) -> &ConnectionState {
        &self.taken.state
    }

    /// The socket's options, which are not part of the state.
    pub fn options(&self) -> &SocketOptions {
        &self.taken.options
    }

    /// What the socket has received, and acknowledged, since the state was read: a segment may have passed the filter on
    /// another CPU. The new owner must get it as a segment of the peer before [`close_silently`](Self::close_silently).
    ///
    /// # Errors
    /// The socket's queue cannot be read.
    pub fn late(&self) -> Result<Late, CaptureError> {
        let fd = self.socket.fd();
        let repair = Repair::of(fd);
        let (before, now) = (&self.taken.muted.ends, Ends::read(repair, fd)?);
        let (_, has_fin) = now.received_since(before);
        let unread = peek_unread(repair, fd, now.unread as usize)
            .map_err(system("read the socket's receive queue"))?
            .ok_or(CaptureError::Changing)?;
        Ok(Late { bytes: unread.slice((before.unread as usize).min(unread.len())..), has_fin })
    }

    /// Ends the socket without a segment, after the new owner has accepted the connection. Other descriptors of the same
    /// socket report an aborted connection.
    ///
    /// # Errors
    /// With the captured connection: the kernel refuses, for example because a thread waits for the socket.
    pub fn close_silently(self) -> Result<(), Failed<Captured>> {
        let Captured { socket, taken } = self;
        socket.end().map_err(|(socket, errno)| Failed {
            kept: Captured { socket, taken },
            error: CaptureError::System("end the captured socket", errno.into()),
        })
    }

    /// Continues with the same socket, because the connection has not moved. Segments that the filter has dropped are sent
    /// again by the peer.
    ///
    /// # Errors
    /// With the captured connection: the process has lost the capability to leave repair mode.
    pub fn resume(self) -> Result<OwnedFd, Failed<Captured>> {
        let resume = || -> Result<(), CaptureError> {
            let repair = Repair::of(self.socket.fd());
            unmute(repair, self.taken.muted.window)?;
            filter::detach(self.socket.fd()).map_err(system("detach the filter from the socket"))?;
            repair.leave(self.taken.options.reuses_address.unwrap_or(true))
        };
        match resume() {
            Ok(()) => {
                push(self.socket.fd(), &self.taken.options);
                Ok(self.socket.release())
            }
            Err(error) => Err(Failed { kept: self, error }),
        }
    }
}

/// Sends what a timer would have sent during the capture, had the peer's window not counted as closed.
fn push(fd: &OwnedFd, options: &SocketOptions) {
    if options.cork == Some(false) {
        // Clearing the option that is clear makes the kernel look at the send queue; it cannot fail.
        let _ = sockopt::set_tcp_cork(fd, false);
    }
}
