//! The socket of a connection that has moved, until no segment can reach it any more.

use std::time::{Duration, Instant};

use crate::error::CaptureError;
use crate::held::Held;
use crate::peer_packet::PeerPacket;
use crate::remainder::Remainder;

/// Shortest time between the filter and the end of the socket. Segments that were on their way when the switch began to hold
/// the flow, or on another CPU when the filter was attached, meet a socket until then, and not a reset.
pub const GRACE: Duration = Duration::from_millis(20);
/// Times since the filter at which late bytes are looked for. The peer waits for the answer to these bytes, and a thread that
/// was interrupted between the filter and the socket's queue usually continues soon.
const CHECKS_MS: [u64; 5] = [1, 2, 4, 8, 14];

/// The socket of a connection that has a new owner. It accepts and sends nothing. A drop ends it at once.
#[derive(Debug)]
#[must_use = "a drop ends the socket before its grace is over"]
pub struct Leaving {
    /// `None` after its end.
    socket: Option<Held>,
    cookie: u64,
    remainder: Remainder,
    filtered_at: Instant,
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
    pub(crate) fn new(socket: Held, cookie: u64, remainder: Remainder, filtered_at: Instant) -> Leaving {
        Leaving { socket: Some(socket), cookie, remainder, filtered_at }
    }

    /// The socket's cookie (SO_COOKIE), by which the kernel reports its end.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// The next step. When [`GRACE`] is over, and the new owner has all that this host knows of the peer, the socket ends without
    /// a segment: other descriptors of the same socket report an aborted connection.
    ///
    /// # Errors
    /// The kernel refuses to read the socket or the copies, or to end the socket, for example because a thread waits for it.
    /// Poll again later. [`Refusal::Urgent`](crate::Refusal::Urgent) is final: urgent data has passed the filter on another CPU,
    /// and cannot be forwarded; the peer has an acknowledgement of it, so the connection must be reset at its new owner.
    pub fn poll(&mut self, now: Instant) -> Result<Step, CaptureError> {
        let Some(socket) = &self.socket else { return Ok(Step::Ended) };
        if let Some(packet) = self.remainder.next(socket.fd())? {
            return Ok(Step::Forward(packet));
        }
        let elapsed = now.saturating_duration_since(self.filtered_at);
        if elapsed < GRACE {
            return Ok(Step::Wait(self.filtered_at + next_check(elapsed)));
        }
        if let Some(socket) = self.socket.take()
            && let Err((socket, errno)) = socket.end()
        {
            self.socket = Some(socket);
            return Err(CaptureError::System("end the captured socket", errno.into()));
        }
        Ok(Step::Ended)
    }
}

/// The time since the filter at which to look next.
fn next_check(elapsed: Duration) -> Duration {
    CHECKS_MS.map(Duration::from_millis).into_iter().find(|check| *check > elapsed).unwrap_or(GRACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_become_rarer_and_the_last_one_is_the_end() {
        let mut at = Duration::ZERO;
        let mut checks = 0;
        while at < GRACE {
            let next = next_check(at);
            assert!(at < next && next <= GRACE);
            (at, checks) = (next, checks + 1);
        }
        assert_eq!(checks, CHECKS_MS.len() + 1);
    }
}
