//! The helped carrier: a link of our own with one virtual connection.

mod bytes;
mod opening;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use spillway_batch::{CloseReason, Fresh, Id, Limits, LinkError, OpenerLink, RefuseReason};
use spillway_transport::Time;

use crate::LinkTarget;
use crate::outbox::Outbox;
use crate::settings::Settings;
use crate::socket;
use crate::watch::Interest;

/// Bytes that `send` takes at most before the socket took them.
const PENDING_BYTES_MAX: usize = 256 * 1024;

/// A link, its socket, and what is between them.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: OwnedFd,
    pub(crate) target: SocketAddr,
    server: Option<SocketAddr>,
    end: OpenerLink,
    stage: Stage,
    unsent: Outbox,
    /// Replies that arrived while nobody could receive them. Empty almost always.
    held: Vec<u8>,
    held_start: usize,
    /// How the incoming direction has ended.
    ended: Option<Ended>,
    /// Nothing goes out any more.
    finished: bool,
    /// It carries the application's bytes now.
    pub(crate) in_use: bool,
    /// `send` took less than it was given.
    wants_room: bool,
    /// The other side's wish, until it was told.
    drain_ms: Option<u32>,
    pub(crate) watched: Option<Interest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    Authenticating,
    /// *connect* went out; not yet accepted.
    Asked(Id),
    Open(Id),
}

/// How a virtual connection's incoming direction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// In order: all bytes have come.
    Finished,
    /// The connection was closed or reset by the server.
    Closed(CloseReason),
    /// The link is gone.
    LinkLost,
    /// The link's socket failed.
    Socket(io::ErrorKind),
    /// The other side broke the rules of links.
    Broken(LinkError),
    /// The connection was refused.
    Refused(RefuseReason),
}

impl Link {
    /// Starts to connect.
    pub(crate) fn start(
        now: Time,
        target: &LinkTarget,
        settings: &Settings,
        fresh: Fresh,
    ) -> io::Result<Link> {
        let socket = socket::start(target.address)?;
        let config = target.opener(Limits {
            window_bytes: settings.window_bytes.max(1),
            pending_bytes_max: PENDING_BYTES_MAX,
            ..Limits::default()
        });
        Ok(Link {
            socket,
            target: target.address,
            server: target.server,
            end: OpenerLink::new(&config, now, fresh),
            stage: Stage::Connecting,
            unsent: Outbox::default(),
            held: Vec::new(),
            held_start: 0,
            ended: None,
            finished: false,
            in_use: false,
            wants_room: false,
            drain_ms: None,
            watched: None,
        })
    }

    /// Whether TCP is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.stage != Stage::Connecting
    }

    pub(crate) fn interest(&self) -> Interest {
        let connected = self.is_connected();
        Interest {
            // Before it is in use, nobody takes what is held: one buffer of it is enough.
            readable: connected && (self.in_use || self.held.is_empty()) && !self.is_dead(),
            writable: !connected || !self.unsent.is_empty(),
        }
    }

    /// Whether the socket has nothing more to tell.
    fn is_dead(&self) -> bool {
        matches!(self.ended, Some(Ended::LinkLost | Ended::Socket(_) | Ended::Broken(_)))
    }

    /// Bytes that `send` took and that have not left.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.len() + self.end.pending()
    }

    /// What the other side wished since it was last asked.
    #[must_use]
    pub(crate) fn poll_drain(&mut self) -> Option<u32> {
        self.drain_ms.take()
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Finished => f.write_str("the server sends no more"),
            Ended::Closed(CloseReason::Normal) => f.write_str("the server closed the connection"),
            Ended::Closed(CloseReason::Reset) => {
                f.write_str("the connection was reset by the server or the helper")
            }
            Ended::Closed(CloseReason::OverCredit) => {
                f.write_str("closed: more was sent than credit allowed")
            }
            Ended::Closed(CloseReason::Protocol) => {
                f.write_str("closed: a rule of the connection was broken")
            }
            Ended::Closed(CloseReason::Moved | CloseReason::Lost) => {
                f.write_str("closed, as if it carried a session")
            }
            Ended::LinkLost => f.write_str("the helper closed the link"),
            Ended::Socket(kind) => write!(f, "the link to the helper failed: {kind}"),
            Ended::Broken(error) => write!(f, "the link is broken: {error}"),
            Ended::Refused(reason) => write!(f, "refused: {reason}"),
        }
    }
}

impl std::error::Error for Ended {}

impl Ended {
    /// What a socket would say.
    fn to_result(self) -> io::Result<usize> {
        let kind = match self {
            Ended::Finished | Ended::Closed(CloseReason::Normal) => return Ok(0),
            Ended::Closed(_) | Ended::LinkLost => io::ErrorKind::ConnectionReset,
            Ended::Socket(kind) => kind,
            Ended::Broken(_) => io::ErrorKind::InvalidData,
            Ended::Refused(_) => io::ErrorKind::ConnectionRefused,
        };
        Err(io::Error::new(kind, self))
    }
}
