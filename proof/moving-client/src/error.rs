//! Why a connection did not move.

use std::fmt;
use std::io;
use std::time::Duration;

use spillway_batch::{LinkError, RefuseReason};

/// Why a connection did not move, or was not opened at all. What carried its bytes before still does.
#[derive(Debug)]
pub enum MoveError {
    // Our caller.
    /// A move is under way: await its end, or call it off with `cancel_move`.
    Moving,
    /// It is there already.
    AlreadyThere,
    /// This many bytes that `send` took have not left yet: await their replies first.
    Unsent(usize),
    /// Replies have arrived that nobody has received: receive them first.
    Unread,
    /// The connection was made without a server to connect to directly.
    NoServer,
    /// Nothing is prepared.
    NotPrepared,

    // The peer.
    /// The helper or the server refused the connection.
    Refused(RefuseReason),
    /// The link could not be set up: a wrong key, another version, or not a link port at all.
    Link(LinkError),
    /// The other side closed the link before the connection was accepted.
    Closed,
    /// TCP did not connect in time.
    ConnectTimeout(Duration),
    /// The connection was not accepted in time.
    AcceptedTimeout(Duration),

    // The system.
    /// The socket failed.
    System(io::Error),
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MoveError::Moving => f.write_str("a move is under way"),
            MoveError::AlreadyThere => f.write_str("the connection is there already"),
            MoveError::Unsent(bytes) => {
                write!(f, "{bytes} bytes are unsent: await their replies before a move")
            }
            MoveError::Unread => f.write_str("replies have arrived: receive them before a move"),
            MoveError::NoServer => f.write_str("no server is known to connect to directly"),
            MoveError::NotPrepared => f.write_str("no move is prepared"),
            MoveError::Refused(RefuseReason::Unavailable) => {
                f.write_str("refused: the helper's link to the server is down, or the server is going away")
            }
            MoveError::Refused(reason) => write!(f, "refused: {reason}"),
            MoveError::Link(error) => error.fmt(f),
            MoveError::Closed => f.write_str(
                "the other side closed the link before it accepted; see its log for the reason (is it a link port?)",
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
