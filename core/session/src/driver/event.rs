//! What a session tells its user.

use alloc::collections::VecDeque;
use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;

use spillway_batch::{CloseReason, LinkError, RefuseReason};

use crate::client::CarrierError;

/// Something that happened. The driver goes on without an answer. `E` is the error of the host's
/// sockets.
#[derive(Debug)]
pub enum SessionEvent<E> {
    /// This link port carries the session from now on.
    Moved(SocketAddr),
    /// This one does not any more, or did not come to it. Another is tried.
    CarrierLost {
        /// Which.
        address: SocketAddr,
        /// Why.
        why: CarrierLoss<E>,
    },
    /// The server's application accepted the session.
    Accepted,
    /// `send` has room again after it took less than it was given.
    Room,
}

/// Why a carrier carries a session no more.
#[derive(Debug)]
pub enum CarrierLoss<E> {
    /// Its socket failed.
    Socket(E),
    /// The other side closed it.
    Closed,
    /// It was silent for so long.
    Silent(Duration),
    /// Its link broke the rules, or did not authenticate.
    Link(LinkError),
    /// The server, or a helper, speaks a version without sessions.
    TooOld,
    /// What it said of the session cannot be.
    Carrier(CarrierError),
    /// It was refused.
    Refused(RefuseReason),
    /// It wants to go away.
    Drain,
    /// The server wants the session elsewhere: with a helper, or without.
    SentAway,
    /// The application asked for another one, or closed.
    Asked,
}

impl<E: fmt::Display> fmt::Display for CarrierLoss<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CarrierLoss::Socket(error) => error.fmt(f),
            CarrierLoss::Closed => f.write_str("closed by the other side"),
            CarrierLoss::Silent(time) => write!(f, "silent for {time:?}"),
            CarrierLoss::Link(error) => error.fmt(f),
            CarrierLoss::TooOld => f.write_str("it speaks a version without sessions: update it"),
            CarrierLoss::Carrier(error) => error.fmt(f),
            CarrierLoss::Refused(reason) => write!(f, "refused: {reason}"),
            CarrierLoss::Drain => f.write_str("it wants to go away"),
            CarrierLoss::SentAway => f.write_str("the server wants the session elsewhere"),
            CarrierLoss::Asked => f.write_str("left on purpose"),
        }
    }
}

/// The server does not know the session any more: it was restarted, or the session expired. What was sent and not
/// acknowledged has an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The server is known to have received all bytes up to this offset.
    pub acknowledged: u64,
    /// Bytes were sent up to this one.
    pub written: u64,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the server lost the session; it is known to have received {} of {} bytes, the outcome of the rest is \
             unknown",
            self.acknowledged, self.written
        )
    }
}

impl core::error::Error for Gone {}

/// How the incoming direction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The server sends no more, or has closed in order.
    InOrder,
    /// The session was closed for another reason.
    Reset(CloseReason),
    /// The server's application refused the session.
    Refused,
    /// The server does not know the session any more.
    Gone(Gone),
    /// Nothing has carried the session for too long.
    GivenUp,
    /// The server's own port refuses connections: its process is gone, and the session with it, if there was one.
    Absent(Option<Gone>),
}

/// Events that wait to be polled. When there are too many, the oldest are dropped.
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
    fn the_newest_events_are_kept() {
        let mut events = Events::<()>::new();
        events.push(SessionEvent::Accepted);
        (0..Events::<()>::MAX).for_each(|_| events.push(SessionEvent::Room));
        assert_eq!(events.0.len(), Events::<()>::MAX);
        assert!(matches!(events.pop(), Some(SessionEvent::Room)));
    }
}
