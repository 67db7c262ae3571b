//! Errors of control messages.

use core::fmt;

use crate::cursor::Truncated;
use crate::frame::{CONTROL_BYTES_MAX, Kind};

/// Why a control message is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlError {
    /// The message is shorter than its layout.
    Truncated(Kind),
    /// Bytes follow the end of the message.
    Trailing(Kind),
    /// The message is longer than [`CONTROL_BYTES_MAX`].
    TooLong(u16),
    /// The *more* bit is set, which is valid only for data.
    Continued(Kind),
    /// The address family is neither 4 nor 6.
    AddressFamily(u8),
    /// *connect* carries no client address.
    NoClient,
    /// The version of *connect* is unknown.
    Version(u8),
    /// The reason code is unknown.
    Reason(u8),
    /// Unknown flags are set.
    Flags(u8),
    /// The kind is *request* or *reply*, which carry data.
    Data(Kind),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::Truncated(kind) => write!(f, "control message {kind:?} is truncated"),
            ControlError::Trailing(kind) => write!(f, "bytes follow the end of control message {kind:?}"),
            ControlError::TooLong(length) => {
                write!(f, "control message of {length} bytes; the maximum is {CONTROL_BYTES_MAX}")
            }
            ControlError::Continued(kind) => write!(f, "control message {kind:?} has the more bit"),
            ControlError::AddressFamily(family) => write!(f, "address family {family} is neither 4 nor 6"),
            ControlError::NoClient => f.write_str("connect carries no client address"),
            ControlError::Version(version) => write!(f, "connect of unknown version {version}"),
            ControlError::Reason(code) => write!(f, "unknown reason code {code}"),
            ControlError::Flags(byte) => write!(f, "unknown flags {byte:#04x}"),
            ControlError::Data(kind) => {
                write!(f, "a frame of kind {kind:?} carries data, not a control message")
            }
        }
    }
}

impl core::error::Error for ControlError {}

/// The kind is a placeholder, which [`Control::parse`](crate::Control::parse) replaces.
impl From<Truncated> for ControlError {
    fn from(_: Truncated) -> ControlError {
        ControlError::Truncated(Kind::Connect)
    }
}
