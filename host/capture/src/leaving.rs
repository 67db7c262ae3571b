//! The socket of a connection that has moved, until no segment can reach it any more.

use std::time::Instant;

use crate::error::CaptureError;
use crate::grace::Grace;
use crate::held::Held;
use crate::peer_packet::PeerPacket;
use crate::remainder::Remainder;

/// The socket of a connection that has a new owner. It accepts and sends nothing. A drop ends it at once.
#[derive(Debug)]
#[must_use = "a drop ends the socket before its grace is over"]
pub struct Leaving {
    /// `None` after its end.
    socket: Option<Held>,
    cookie: u64,
    remainder: Remainder,
    grace: Grace,
}

/// What to do for a connection that has moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Give this packet to the new owner, which injects it, and poll again.
    Forward(PeerPacket),
    /// Poll again at this time, or earlier when the copying filter's ring is readable.
    Wait(Instant),
    /// The socket has ended, without a segment.
    Ended,
}

impl Leaving {
    /// `filtered_at`: time since which the filter is attached.
    pub(crate) fn new(socket: Held, cookie: u64, remainder: Remainder, filtered_at: Instant) -> Leaving {
        Leaving { socket: Some(socket), cookie, remainder, grace: Grace::new(filtered_at) }
    }

    /// The socket's cookie (SO_COOKIE), by which the kernel reports its end.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// The next step. When [`GRACE`](crate::GRACE) is over, and the new owner has all that this host knows of the peer, the
    /// socket ends without a segment: other descriptors of the same socket report an aborted connection.
    ///
    /// Packets with late bytes, which the peer never sends again, are returned several times: at the first poll after each time
    /// that [`Step::Wait`] has named. So such a packet may be lost on its way, and the new owner may have no room for
    /// it at first. An owner that has the bytes drops them. The grace begins again when late bytes are found.
    ///
    /// # Errors
    /// The kernel refuses to read the socket or the copies, or to end the socket, for example because a thread waits for it.
    /// Poll again later. [`Refusal::Urgent`](crate::Refusal::Urgent) is final: urgent data has passed the filter on another CPU,
    /// and cannot be forwarded; the peer has an acknowledgement of it, so the connection must be reset at its new owner.
    pub fn poll(&mut self, now: Instant) -> Result<Step, CaptureError> {
        let Some(socket) = &self.socket else { return Ok(Step::Ended) };
        if self.grace.is_check_due(now) {
            self.remainder.repeat_late();
        }
        let late_before = self.remainder.late_numbers();
        let packet = self.remainder.next(socket.fd())?;
        if self.remainder.late_numbers() > late_before {
            // Each late byte is repeated at all checks.
            self.grace = Grace::new(now);
        }
        match (packet, self.grace.next_check()) {
            (Some(packet), _) => Ok(Step::Forward(packet)),
            (None, Some(check)) => Ok(Step::Wait(check)),
            (None, None) => self.end(),
        }
    }

    fn end(&mut self) -> Result<Step, CaptureError> {
        if let Some(socket) = self.socket.take()
            && let Err((socket, errno)) = socket.end()
        {
            self.socket = Some(socket);
            return Err(CaptureError::System("end the captured socket", errno.into()));
        }
        Ok(Step::Ended)
    }
}
