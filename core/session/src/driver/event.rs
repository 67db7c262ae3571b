//! Events and outcomes of a session.

use alloc::collections::VecDeque;
use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;

use spillway_batch::{CloseReason, LinkError, RefuseReason};

use crate::client::CarrierError;

/// An event of a session; the host need not react to it. `E` is the error type of the host's sockets.
#[derive(Debug)]
pub enum SessionEvent<E> {
    /// This link port carries the session from now on.
    Moved(SocketAddr),
    /// This link port no longer carries the session, or the attempt at it failed. The driver tries another one unless
    /// the session has ended.
    CarrierLost {
        /// The link port.
        address: SocketAddr,
        /// The cause.
        why: CarrierLoss<E>,
    },
    /// The server's application accepted the session.
    Accepted,
    /// There is room to write again, after [`Driver::write`](super::Driver::write) took fewer bytes than it was given.
    Room,
}

/// Why a session left a carrier.
#[derive(Debug)]
pub enum CarrierLoss<E> {
    /// The socket failed.
    Socket(E),
    /// The other side closed the socket.
    Closed,
    /// The carrier was silent for this time.
    Silent(Duration),
    /// The link violated the protocol, or did not authenticate.
    Link(LinkError),
    /// The server, or a helper, has a version that does not support sessions.
    TooOld,
    /// The carrier's other end sent an invalid message for this session.
    Carrier(CarrierError),
    /// The carrier was refused.
    Refused(RefuseReason),
    /// The helper or server drains the link.
    Drain,
    /// The server asked the session to move: to a helper, or back to the server's own port.
    AskedToMove,
    /// The application chose another link port, or the session was given up.
    LeftOnRequest,
}

impl<E: fmt::Display> fmt::Display for CarrierLoss<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CarrierLoss::Socket(error) => error.fmt(f),
            CarrierLoss::Closed => f.write_str("closed by the other side"),
            CarrierLoss::Silent(time) => write!(f, "silent for {time:?}"),
            CarrierLoss::Link(error) => error.fmt(f),
            CarrierLoss::TooOld => {
                f.write_str("the version of the helper or server does not support sessions: update it")
            }
            CarrierLoss::Carrier(error) => error.fmt(f),
            CarrierLoss::Refused(reason) => write!(f, "refused: {reason}"),
            CarrierLoss::Drain => f.write_str("the helper or server drains the link"),
            CarrierLoss::AskedToMove => f.write_str("the server asked the session to move"),
            CarrierLoss::LeftOnRequest => f.write_str("left on request"),
        }
    }
}

/// The server does not know the session any more: it was restarted, or the session expired. Bytes that were sent and
/// not acknowledged have an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The server had acknowledged all bytes up to this offset.
    pub acknowledged: u64,
    /// The application had written bytes up to this offset.
    pub written: u64,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the server lost the session; it had acknowledged {} of {} bytes, and the outcome of the others is \
             unknown",
            self.acknowledged, self.written
        )
    }
}

impl core::error::Error for Gone {}

/// How the incoming direction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The server sends no more bytes, or has closed with [`CloseReason::Normal`].
    InOrder,
    /// The session was closed for another reason.
    Reset(CloseReason),
    /// The server's application refused the session.
    Refused,
    /// The server does not know the session any more.
    Gone(Gone),
    /// For too long the session had no carrier on which the server answered.
    GivenUp,
    /// The server's own port refuses connections: its process has ended, and the session, if there was one, is lost.
    Absent(Option<Gone>),
}

/// Events that wait to be polled. Beyond [`Events::MAX`] the oldest are dropped.
#[derive(Debug)]
pub(super) struct Events<E>(VecDeque<SessionEvent<E>>);

impl<E> Events<E> {
    const MAX: usize = 32;

    pub(super) fn new() -> Events<E> {
        Events(VecDeque::new())
    }

    pub(super) fn push(&mut self, event: SessionEvent<E>) {
        if self.0.len() >= Self::MAX {
            self.0.pop_front();
        }
        self.0.push_back(event);
    }

    pub(super) fn pop(&mut self) -> Option<SessionEvent<E>> {
        self.0.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_event_is_dropped_at_the_bound() {
        let mut events = Events::<()>::new();
        events.push(SessionEvent::Accepted);
        (0..Events::<()>::MAX).for_each(|_| events.push(SessionEvent::Room));
        assert_eq!(events.0.len(), Events::<()>::MAX);
        assert!(matches!(events.pop(), Some(SessionEvent::Room)), "the newer event should be kept");
    }
}
