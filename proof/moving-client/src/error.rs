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
    /// The application has ended the outgoing stream, and a stream that has ended cannot continue on another carrier.
    Finished,

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
    AcceptTimeout(Duration),

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
            MoveError::Finished => f.write_str(
                "the outgoing stream has ended: receive the remaining replies, then discard the carrier before a move",
            ),
            MoveError::Refused(RefuseReason::Unavailable) => {
                f.write_str("refused: the helper's link to the server is down, or the server drains")
            }
            MoveError::Refused(reason) => write!(f, "refused: {reason}"),
            MoveError::Link(error) => error.fmt(f),
            MoveError::Closed => f.write_str(
                "the helper or server closed the link before it accepted the connection: check that the address is a \
                 link port, and see the log of that helper or server",
            ),
            MoveError::ConnectTimeout(limit) => write!(
                f,
                "the TCP connection was not established within {limit:?}: check the address, and that its host is \
                 reachable"
            ),
            MoveError::AcceptTimeout(limit) => write!(
                f,
                "the virtual connection was not accepted within {limit:?}: see the log of the helper or server"
            ),
            MoveError::System(error) => error.fmt(f),
        }
    }
}

// No `source`: the text contains the cause, and a program that prints the chain would print it twice.
impl std::error::Error for MoveError {}

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

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn a_chain_of_errors_has_each_cause_once() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        for (error, cause) in [
            (MoveError::System(refused), "connection refused"),
            (MoveError::Link(LinkError::WrongProof), "does not have the key"),
        ] {
            let mut chain = error.to_string();
            let mut source = error.source();
            while let Some(error) = source {
                chain += &format!(": {error}");
                source = error.source();
            }
            assert_eq!(chain.matches(cause).count(), 1, "{chain}");
        }
    }

    #[test]
    fn timeouts_name_the_connection_and_the_next_step() {
        let limit = Duration::from_secs(2);
        let connect = MoveError::ConnectTimeout(limit).to_string();
        assert!(
            connect.starts_with("the TCP connection") && connect.contains("check the address"),
            "{connect}"
        );
        let accept = MoveError::AcceptTimeout(limit).to_string();
        assert!(accept.starts_with("the virtual connection") && accept.contains("see the log"), "{accept}");
    }
}
