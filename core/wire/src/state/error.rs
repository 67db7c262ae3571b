//! Why bytes are not a valid connection state.

use core::fmt;

use super::features::Features;
use crate::cursor::Truncated;

/// Why bytes are not a valid connection state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateError {
    /// The magic is wrong.
    Magic,
    /// The version is unknown.
    Version(u8),
    /// The state needs these features, which this end does not have.
    Features(Features),
    /// The input is shorter than its length fields specify.
    Truncated,
    /// The input is longer than its length fields specify.
    Length,
    /// The checksum is wrong.
    Checksum,
    /// This field has an invalid value.
    Field(&'static str),
    /// The state has too many of these bytes, ranges or segments.
    TooMany(&'static str),
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateError::Magic => f.write_str("not the state of a connection: wrong magic"),
            StateError::Version(version) => write!(
                f,
                "the connection's state has version {version}, this end supports 1 and 2: upgrade this end"
            ),
            StateError::Features(features) => {
                write!(
                    f,
                    "the connection's state needs {features}, which this end does not have: upgrade this end"
                )
            }
            StateError::Truncated => {
                f.write_str("the connection's state is shorter than its length fields specify")
            }
            StateError::Length => {
                f.write_str("the connection's state is longer than its length fields specify")
            }
            StateError::Checksum => {
                f.write_str("the connection's state was altered in transit: wrong checksum")
            }
            StateError::Field(field) => write!(f, "the connection's state has an invalid value: {field}"),
            StateError::TooMany(what) => write!(f, "the connection's state has too many {what}"),
        }
    }
}

impl core::error::Error for StateError {}

impl From<Truncated> for StateError {
    fn from(_: Truncated) -> StateError {
        StateError::Truncated
    }
}
