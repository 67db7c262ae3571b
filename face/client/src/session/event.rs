//! What a session tells its user.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_batch::{LinkError, RefuseReason};
use spillway_session::CarrierError;

/// Something that happened. None of it needs an answer: the session goes on by itself.
#[derive(Debug)]
pub enum SessionEvent {
    /// This link port carries the session from now on.
    Moved(SocketAddr),
    /// This one does not any more, or did not come to it. Another is tried.
    CarrierLost {
        /// Which.
        address: SocketAddr,
        /// Why.
        why: CarrierLoss,
    },
    /// The server's application accepted the session.
    Accepted,
    /// `send` has room again after it took less than it was given.
    Room,
}

/// Why a carrier carries a session no more.
#[derive(Debug)]
pub enum CarrierLoss {
    /// Its socket failed.
    Socket(io::Error),
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

impl fmt::Display for CarrierLoss {
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

impl std::error::Error for Gone {}
