//! Why a link cannot go on.

use core::fmt;

use spillway_auth::Altered;
use spillway_wire::preamble::{KeyId, PreambleError, Role, Verdict};
use spillway_wire::record::RecordLength;
use spillway_wire::{DisassembleError, Id, Kind};

/// Why a link cannot go on. Whatever is still to be transmitted may tell the peer; then close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// The peer does not begin as a link does.
    Preamble(PreambleError),
    /// The peer's stream is not a sequence of frames.
    Frame(DisassembleError),
    /// No link version in common; the peer speaks these.
    Version {
        /// Lowest.
        min: u8,
        /// Highest.
        max: u8,
    },
    /// The peer named a key that is not accepted for its role.
    UnknownKey {
        /// The role it wanted.
        role: Role,
        /// The key it named.
        key: KeyId,
    },
    /// The peer does not know the key that it named.
    WrongProof,
    /// The server refused the link.
    RefusedByServer(Verdict),
    /// The server's answer makes no sense: a version that was not offered, or no connections at all.
    Welcome,
    /// The peer did not authenticate in time.
    HandshakeTimeout,
    /// *connect* for an id that is in use, or beyond the number of connections.
    Id(Id),
    /// A frame that this end of a link never receives.
    Direction(Kind),
    /// Words of a session on a link of a version that carries none.
    Sessions,
    /// The peer's stream is not a sequence of records.
    Record(RecordLength),
    /// What came on an encrypted link, or during its key exchange, is not what the peer sent.
    Altered,
    /// The rest of a record did not come.
    RecordTimeout,
    /// The link would not be encrypted, and this end requires it.
    Unencrypted,
    /// Our own mistake: bytes of an encrypted link that have not been opened are not taken apart.
    Sealed,
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Preamble(error) => error.fmt(f),
            LinkError::Frame(error) => error.fmt(f),
            LinkError::Version { min, max } => write!(
                f,
                "no link version in common: the peer speaks {min} to {max}, this program {} to {}; update the older",
                spillway_wire::preamble::VERSIONS.start(),
                spillway_wire::preamble::VERSIONS.end()
            ),
            LinkError::UnknownKey { role, key } => {
                write!(f, "key {key} is not accepted of a {role}: give both sides the same key file")
            }
            LinkError::WrongProof => f.write_str("the peer does not know the key that it named"),
            LinkError::RefusedByServer(verdict) => f.write_str(match verdict {
                Verdict::Key => "the server does not accept our key for this role",
                Verdict::Version => "the server speaks none of our link versions",
                Verdict::Full => "the server has no room for another link",
                Verdict::Proceed => "the server closed the link while it was set up",
            }),
            LinkError::Welcome => f.write_str("the server's welcome makes no sense"),
            LinkError::HandshakeTimeout => f.write_str("the peer did not authenticate in time"),
            LinkError::Id(id) => write!(f, "connect for {id}, which is in use or out of range"),
            LinkError::Record(error) => write!(f, "{error}: altered on the way, or not a Spillway peer"),
            LinkError::Altered => Altered.fmt(f),
            LinkError::RecordTimeout => {
                f.write_str("the rest of a record did not come within 10 s: withheld on the way, or the peer stands still")
            }
            LinkError::Unencrypted => f.write_str(
                "the link would not be encrypted, which is required here: update the peer to link version 4, and give both \
                 sides a key",
            ),
            LinkError::Sealed => f.write_str("records were to be taken apart before they were opened"),
            LinkError::Sessions => f.write_str("a session on a link of version 1, which carries none"),
            LinkError::Direction(kind) => write!(f, "{kind:?} came from the wrong side of the link"),
        }
    }
}

impl core::error::Error for LinkError {}

/// An application says that it has consumed more of a connection than it has received. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumedTooMuch {
    /// Bytes that were said to be consumed.
    pub bytes: usize,
    /// Bytes that were received and not consumed before.
    pub unconsumed: u64,
}

impl fmt::Display for ConsumedTooMuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConsumedTooMuch { bytes, unconsumed } = self;
        write!(
            f,
            "{bytes} bytes are said to be consumed, but only {unconsumed} were received and not consumed before: count \
             each byte once"
        )
    }
}

impl core::error::Error for ConsumedTooMuch {}

impl From<PreambleError> for LinkError {
    fn from(error: PreambleError) -> LinkError {
        LinkError::Preamble(error)
    }
}

impl From<RecordLength> for LinkError {
    fn from(error: RecordLength) -> LinkError {
        LinkError::Record(error)
    }
}

impl From<Altered> for LinkError {
    fn from(_: Altered) -> LinkError {
        LinkError::Altered
    }
}

impl From<DisassembleError> for LinkError {
    fn from(error: DisassembleError) -> LinkError {
        LinkError::Frame(error)
    }
}
