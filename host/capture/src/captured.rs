//! A captured connection, whose socket waits for the decision of the move.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::net::sockopt;
use spillway_wire::state::{ConnectionState, SocketOptions};

use crate::error::{CaptureError, Failed, system};
use crate::filter;
use crate::held::Held;
use crate::inject::Injector;
use crate::leaving::Leaving;
use crate::muted::{Muted, unmute};
use crate::peer_packet::PeerPacket;
use crate::remainder::Remainder;
use crate::repair::Repair;

/// A connection that was taken out of its socket. The socket stays in repair mode behind a filter that accepts no segment, and
/// sends nothing new, because the peer's window counts as closed. Its timers still run: the first unacknowledged segment is
/// sent again after the retransmission timeout, and an acknowledgement that the kernel delays because of unread bytes is
/// sent within 40 ms.
///
/// The socket ends only after the move is decided: [`accepted`](Self::accepted) if the new owner has accepted the connection,
/// otherwise [`resume`](Self::resume). A drop ends the socket without a segment, and loses what only this host has of the peer.
#[derive(Debug)]
#[must_use = "a drop ends the connection without telling the peer"]
pub struct Captured {
    socket: Held,
    taken: Box<Taken>,
}

/// What was taken out of the socket.
#[derive(Debug)]
pub(crate) struct Taken {
    pub cookie: u64,
    pub state: ConnectionState,
    pub muted: Muted,
    /// Time since which the filter is attached.
    pub filtered_at: Instant,
    pub remainder: Remainder,
}

/// A connection that has not moved.
#[derive(Debug)]
#[must_use = "a drop closes the connection"]
pub struct Resumed {
    /// The same socket.
    pub socket: OwnedFd,
    /// Copied packets that were injected into it.
    pub injected: usize,
    /// Why a copied packet was not injected. The peer sends it again after its retransmission timeout.
    pub fault: Option<CaptureError>,
}

impl Captured {
    pub(crate) fn new(fd: OwnedFd, taken: Taken) -> Captured {
        Captured { socket: Held::new(fd), taken: Box::new(taken) }
    }

    /// The connection's state, which has the socket's options. `listener` and `attachment` are `None`: the application knows them. `recovery` is `None`, too,
    /// and so is TS.Recent unless the [`Capturer`](crate::Capturer) reads it: sockets do not reveal them.
    pub fn state(&self) -> &ConnectionState {
        &self.taken.state
    }

    /// The socket's cookie (SO_COOKIE), by which the kernel reports its end.
    pub fn cookie(&self) -> u64 {
        self.taken.cookie
    }

    /// Gives the connection up, because its new owner has accepted it. The socket stays as it is until its grace is over.
    pub fn accepted(self) -> Leaving {
        let Captured { socket, taken } = self;
        let Taken { cookie, filtered_at, remainder, .. } = *taken;
        Leaving::new(socket, cookie, remainder, filtered_at)
    }

    /// Ends the socket at once, without a segment, so that this host can have another socket with the same addresses. All
    /// segments of the peer must be held elsewhere: one that reaches this host before it has such a socket is answered by a
    /// reset. For all other moves there is [`accepted`](Self::accepted). Returns what the new owner must get, as
    /// [`Step::Forward`](crate::Step::Forward) does.
    ///
    /// Other descriptors of the same socket report an aborted connection.
    ///
    /// # Errors
    /// With the captured connection: its queues cannot be read, or the kernel refuses, for example because a thread waits for
    /// the socket.
    pub fn close_without_grace(mut self) -> Result<Vec<PeerPacket>, Failed<Captured>> {
        let mut packets = Vec::new();
        loop {
            match self.taken.remainder.next(self.socket.fd()) {
                Ok(Some(packet)) => packets.push(packet),
                Ok(None) => break,
                Err(error) => return Err(Failed { kept: self, error }),
            }
        }
        let Captured { socket, taken } = self;
        match socket.end() {
            Ok(()) => Ok(packets),
            Err((socket, errno)) => {
                let error = CaptureError::System("end the captured socket", errno.into());
                Err(Failed { kept: Captured { socket, taken }, error })
            }
        }
    }

    /// Continues with the same socket, because the connection has not moved, and injects the copies of the segments that it
    /// has not accepted. Segments that were dropped are sent again by the peer.
    ///
    /// # Errors
    /// With the captured connection: the process has lost the capability to leave repair mode.
    pub fn resume(mut self, injector: &Injector) -> Result<Resumed, Failed<Captured>> {
        if let Err(error) = self.restore() {
            return Err(Failed { kept: self, error });
        }
        if self.options().is_some_and(|options| options.cork == Some(false)) {
            push(self.socket.fd());
        }
        let (mut injected, mut fault) = (0, None);
        loop {
            match self.taken.remainder.next_copy() {
                Ok(None) => break,
                Ok(Some(packet)) => match injector.inject(&packet) {
                    Ok(()) => injected += 1,
                    Err(error) => fault = fault.or(Some(error)),
                },
                Err(error) => {
                    fault = fault.or(Some(error));
                    break;
                }
            }
        }
        Ok(Resumed { socket: self.socket.release(), injected, fault })
    }

    /// Makes the socket one that sends and accepts segments.
    fn restore(&self) -> Result<(), CaptureError> {
        let fd = self.socket.fd();
        let repair = Repair::of(fd);
        unmute(repair, self.taken.muted.window)?;
        filter::detach(fd).map_err(system("detach the filter from the socket"))?;
        repair.leave(self.options().and_then(|options| options.reuses_address).unwrap_or(true))
    }

    fn options(&self) -> Option<&SocketOptions> {
        self.taken.state.socket_options.as_ref()
    }
}

/// Sends what a timer would have sent during the capture, had the peer's window not counted as closed. The socket must not be
/// corked.
fn push(fd: &OwnedFd) {
    // Clearing the option that is clear makes the kernel look at the send queue; it cannot fail.
    let _ = sockopt::set_tcp_cork(fd, false);
}
