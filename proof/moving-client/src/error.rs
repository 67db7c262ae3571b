//! Errors of moves.

use std::fmt;
use std::io;
use std::time::Duration;

use spillway_batch::{LinkError, RefuseReason};

/// The reason for which a connection did not move, or did not open. The previous carrier stays in use.
#[derive(Debug)]
pub enum MoveError {
    // Errors of the caller.
    /// Another move is in progress: await its end, or call `cancel_move`.
    Moving,
    /// The connection already uses this carrier.
    SameCarrier,
    /// `send` accepted this many bytes that are not sent yet: await their replies first.
    Unsent(usize),
    /// Replies have arrived, but were not received: receive them first.
    Unread,
    /// The connection was opened without a server's address for direct connections.
    NoServer,
    /// `complete_move` needs a prepared move.
    NotPrepared,

    // Errors of the peer.
    /// The helper or the server refused the connection.
    Refused(RefuseReason),
    /// The link was not established: wrong key, other version, or not a link port.
    Link(LinkError),
    /// The other side closed the link before the connection was accepted.
    Closed,
    /// The TCP connection was not established before the timeout.
    ConnectTimeout(Duration),
    /// The virtual connection was not accepted before the timeout.
    AcceptedTimeout(Duration),

    // Errors of the system.
    /// The socket failed.
    System(io::Error),
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MoveError::Moving => f.write_str("another move is in progress: await its end, or cancel it"),
            MoveError::SameCarrier => f.write_str("the connection already uses this carrier"),
            MoveError::Unsent(bytes) => {
                write!(f, "{bytes} bytes are unsent: await their replies before a move")
            }
            MoveError::Unread => f.write_str("replies are unread: receive them before a move"),
            MoveError::NoServer => {
                f.write_str("the connection has no server address for a direct connection")
            }
            MoveError::NotPrepared => {
                f.write_str("no move is prepared: call prepare_move and await Prepared")
            }
            MoveError::Refused(RefuseReason::Unavailable) => {
                f.write_str("refused: the helper's link to the server is down, or the server drains")
            }
            MoveError::Refused(reason) => write!(f, "refused: {reason}"),
            MoveError::Link(error) => error.fmt(f),
            MoveError::Closed => f.write_str(
                "the other side closed the link before it accepted: is the address a link port? see its log",
            ),
            MoveError::ConnectTimeout(limit) => write!(f, "no connection within {limit:?}"),
            MoveError::AcceptedTimeout(limit) => write!(f, "not accepted within {limit:?}"),
            MoveError::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for MoveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            MoveError::System(error) => Some(error),
            MoveError::Link(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for MoveError {
    fn from(error: io::Error) -> MoveError {
        MoveError::System(error)
    }
}

impl From<LinkError> for MoveError {
    fn from(error: LinkError) -> MoveError {
        MoveError::Link(error)
    }
}
