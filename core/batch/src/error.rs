use core::fmt;

use spillway_auth::NotAuthentic;
use spillway_wire::preamble::{KeyId, PreambleError, Role, Verdict};
use spillway_wire::record::InvalidRecordLength;
use spillway_wire::{DisassembleError, Id, Kind};

/// A fatal error of a link. Send the waiting output, which may inform the peer; then close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// The peer's first bytes are not a link's preamble.
    Preamble(PreambleError),
    /// The peer's stream is not a sequence of frames.
    Frame(DisassembleError),
    /// The two ends have no link version in common.
    Version {
        /// Lowest link version of the peer.
        min: u8,
        /// Highest link version of the peer.
        max: u8,
    },
    /// The peer named a key that is not accepted for its role.
    UnknownKey {
        /// The role that the peer stated.
        role: Role,
        /// The key that the peer named.
        key: KeyId,
    },
    /// The peer does not have the key that it named.
    WrongProof,
    /// The server refused the link.
    RefusedByServer(Verdict),
    /// The server's welcome is invalid: a version that was not offered, or an impossible number of connections.
    Welcome,
    /// The peer did not authenticate in time.
    HandshakeTimeout,
    /// *connect* for an id that is in use, or beyond the number of connections.
    Id(Id),
    /// A frame that this end of a link never receives.
    Direction(Kind),
    /// A message of sessions on a link whose version cannot carry them.
    Sessions,
    /// The peer's stream is not a sequence of records.
    Record(InvalidRecordLength),
    /// Bytes of an encrypted link, or of its key exchange, were altered on the path.
    Altered,
    /// The rest of a record did not arrive in time.
    RecordTimeout,
    /// The link would not be encrypted, and this end requires it.
    Unencrypted,
    /// The caller passed sealed bytes of an encrypted link to `decompose`: pass them through `unseal` first.
    Sealed,
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Preamble(error) => error.fmt(f),
            LinkError::Frame(error) => error.fmt(f),
            LinkError::Version { min, max } => write!(
                f,
                "no link version in common: the peer supports {min} to {max}, this program {} to {}; update the older \
                 program",
                spillway_wire::preamble::VERSIONS.start(),
                spillway_wire::preamble::VERSIONS.end()
            ),
            LinkError::UnknownKey { role, key } => {
                write!(f, "key {key} is not accepted for a {role}: give both sides the same key file")
            }
            LinkError::WrongProof => f.write_str("the peer does not have the key that it named"),
            LinkError::RefusedByServer(verdict) => f.write_str(match verdict {
                Verdict::Key => "the server does not accept our key for this role",
                Verdict::Version => "the server supports none of our link versions",
                Verdict::Full => "the server has no room for another link",
                Verdict::Proceed => "the server closed the link while it was set up",
            }),
            LinkError::Welcome => f.write_str(
                "the server's welcome is invalid (a version that was not offered, or a wrong number of connections): \
                 update both programs to the same version",
            ),
            LinkError::HandshakeTimeout => f.write_str("the peer did not authenticate in time"),
            LinkError::Id(id) => write!(f, "connect for {id}, which is in use or out of range"),
            LinkError::Record(error) => write!(f, "{error}: altered in transit, or not a Spillway peer"),
            LinkError::Altered => NotAuthentic.fmt(f),
            LinkError::RecordTimeout => {
                f.write_str("the rest of a record did not arrive within 10 s: delayed on the path, or the peer hangs")
            }
            LinkError::Unencrypted => f.write_str(
                "the link would not be encrypted, which is required here: update the peer to link version 4, and \
                 give both sides a key",
            ),
            LinkError::Sealed => f.write_str("internal error: sealed bytes were not passed through unseal"),
            LinkError::Sessions => f.write_str("a message of sessions on a link of version 1, which cannot carry them"),
            LinkError::Direction(kind) => write!(f, "{kind:?} came from the wrong side of the link"),
        }
    }
}

impl core::error::Error for LinkError {}

/// An application reported more bytes consumed than the connection has received. The report was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumedTooMuch {
    /// Bytes reported as consumed.
    pub bytes: usize,
    /// Bytes received and not consumed before.
    pub unconsumed: u64,
}

impl fmt::Display for ConsumedTooMuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConsumedTooMuch { bytes, unconsumed } = self;
        write!(
            f,
            "{bytes} bytes were reported as consumed, but only {unconsumed} were received and not consumed before: \
             count each byte once"
        )
    }
}

impl core::error::Error for ConsumedTooMuch {}

impl From<PreambleError> for LinkError {
    fn from(error: PreambleError) -> LinkError {
        LinkError::Preamble(error)
    }
}

impl From<InvalidRecordLength> for LinkError {
    fn from(error: InvalidRecordLength) -> LinkError {
        LinkError::Record(error)
    }
}

impl From<NotAuthentic> for LinkError {
    fn from(_: NotAuthentic) -> LinkError {
        LinkError::Altered
    }
}

impl From<DisassembleError> for LinkError {
    fn from(error: DisassembleError) -> LinkError {
        LinkError::Frame(error)
    }
}
