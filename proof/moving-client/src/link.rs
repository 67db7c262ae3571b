//! The helped carrier: a link with one virtual connection.

mod bytes;
mod opening;

use std::fmt;
use std::io;
use std::net::SocketAddr;

use spillway_batch::{CloseReason, Id, Limits, LinkError, LinkRandomness, OpenerLink, RefuseReason};
use spillway_transport::Time;

use crate::LinkTarget;
use crate::network::{Network, Stream};
use crate::outbox::Outbox;
use crate::settings::Settings;
use crate::watch::Interest;

/// Maximum number of bytes that `send` has accepted and that the socket has not accepted.
const PENDING_BYTES_MAX: usize = 256 * 1024;

#[derive(Debug)]
pub(crate) struct Link<S: Stream> {
    pub(crate) stream: S,
    pub(crate) target: SocketAddr,
    server: Option<SocketAddr>,
    protocol: OpenerLink,
    stage: Stage,
    unsent: Outbox,
    /// Data that arrived while the application could not receive.
    held: Vec<u8>,
    held_start: usize,
    incoming_end: Option<Ended>,
    outgoing_finished: bool,
    pub(crate) in_use: bool,
    last_send_was_partial: bool,
    /// Time left, in ms, of a drain that the other side has announced; `None` once it is polled.
    drain_ms: Option<u32>,
    pub(crate) watched: Option<Interest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    Authenticating {
        /// This end's address, which *connect* names as the client's.
        client: SocketAddr,
    },
    /// *connect* is sent and not accepted yet.
    Requested(Id),
    Open(Id),
}

/// The way in which a virtual connection's incoming direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The server ended its stream. All bytes were received.
    Finished,
    /// The connection was closed or reset by the server.
    Closed(CloseReason),
    /// The other side closed the link.
    LinkLost,
    Socket(io::ErrorKind),
    /// The other side violated the link protocol.
    Broken(LinkError),
    Refused(RefuseReason),
}

impl<S: Stream> Link<S> {
    pub(crate) fn start(
        network: &impl Network<Stream = S>,
        now: Time,
        target: &LinkTarget,
        settings: &Settings,
        randomness: LinkRandomness,
    ) -> io::Result<Link<S>> {
        let stream = network.connect(target.address)?;
        let config = target.opener(Limits {
            window_bytes: settings.window_bytes.max(1),
            pending_bytes_max: PENDING_BYTES_MAX,
            ..Limits::default()
        });
        Ok(Link {
            stream,
            target: target.address,
            server: target.server,
            protocol: OpenerLink::new(&config, now, randomness),
            stage: Stage::Connecting,
            unsent: Outbox::default(),
            held: Vec::new(),
            held_start: 0,
            incoming_end: None,
            outgoing_finished: false,
            in_use: false,
            last_send_was_partial: false,
            drain_ms: None,
            watched: None,
        })
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.stage != Stage::Connecting
    }

    pub(crate) fn interest(&self) -> Interest {
        let connected = self.is_connected();
        Interest {
            // Before the link is in use, at most one buffer of data is held.
            readable: connected && (self.in_use || self.held.is_empty()) && !self.has_failed(),
            writable: !connected || !self.unsent.is_empty(),
        }
    }

    /// Whether the link has failed and delivers no further bytes.
    fn has_failed(&self) -> bool {
        matches!(self.incoming_end, Some(Ended::LinkLost | Ended::Socket(_) | Ended::Broken(_)))
    }

    /// Number of bytes that `send` has accepted and that the socket has not accepted.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.len() + self.protocol.pending()
    }

    /// The time left, in ms, of a drain announced since the last call.
    #[must_use]
    pub(crate) fn poll_drain(&mut self) -> Option<u32> {
        self.drain_ms.take()
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Finished => f.write_str("the server ended its stream"),
            Ended::Closed(CloseReason::Normal) => f.write_str("the server closed the connection"),
            Ended::Closed(CloseReason::Reset) => {
                f.write_str("the connection was reset by the server or the helper")
            }
            Ended::Closed(CloseReason::OverCredit) => {
                f.write_str("the connection was closed: this client sent more than its credit")
            }
            Ended::Closed(CloseReason::Protocol) => {
                f.write_str("the connection was closed because of a protocol violation")
            }
            Ended::Closed(CloseReason::Moved | CloseReason::Lost) => {
                f.write_str("the connection was closed with a reason that only sessions use")
            }
            Ended::LinkLost => f.write_str("the helper or the server closed the link"),
            Ended::Socket(kind) => write!(f, "the link to the helper or the server failed: {kind}"),
            Ended::Broken(error) => write!(f, "the other side violated the link protocol: {error}"),
            Ended::Refused(reason) => write!(f, "the connection was refused: {reason}"),
        }
    }
}

impl std::error::Error for Ended {}

impl Ended {
    /// The result that a socket's `recv` would return.
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
