//! What can be wrong with a control message.

use core::fmt;

use crate::cursor::Truncated;
use crate::frame::{CONTROL_BYTES_MAX, Kind};

/// What is wrong with a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlError {
    /// It ends too early.
    Truncated(Kind),
    /// Bytes follow its end.
    Trailing(Kind),
    /// It is longer than any control message.
    TooLong(u16),
    /// It claims to be continued; control never is.
    Continued(Kind),
    /// An address family other than 4 and 6.
    AddressFamily(u8),
    /// *connect* carries no client address.
    NoClient,
    /// *connect* of a version that this code does not speak.
    Version(u8),
    /// A reason code that this version does not know.
    Reason(u8),
    /// Flags that this version does not know.
    Flags(u8),
    /// *request* and *reply* carry no control message.
    Data(Kind),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::Truncated(kind) => write!(f, "control message {kind:?} ends too early"),
            ControlError::Trailing(kind) => write!(f, "bytes follow the end of control message {kind:?}"),
            ControlError::TooLong(length) => {
                write!(f, "control message of {length} bytes; the longest is {CONTROL_BYTES_MAX}")
            }
            ControlError::Continued(kind) => write!(f, "control message {kind:?} claims to be continued"),
            ControlError::AddressFamily(family) => write!(f, "address family {family} is neither 4 nor 6"),
            ControlError::NoClient => f.write_str("connect carries no client address"),
            ControlError::Version(version) => write!(f, "connect of unknown version {version}"),
            ControlError::Reason(code) => write!(f, "unknown reason {code}"),
            ControlError::Flags(byte) => write!(f, "unknown flags {byte:#04x}"),
            ControlError::Data(kind) => write!(f, "{kind:?} carries no control message"),
        }
    }
}

impl core::error::Error for ControlError {}

/// [`Control::parse`](crate::Control::parse) puts the kind right: it knows which message was cut.
impl From<Truncated> for ControlError {
    fn from(_: Truncated) -> ControlError {
        ControlError::Truncated(Kind::Connect)
    }
}
