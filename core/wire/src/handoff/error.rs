//! Why a datagram between servers is rejected.

use core::fmt;

use super::{DATAGRAM_BYTES_MAX, HANDOFF_VERSION, Kind};

/// Why bytes are not a valid datagram or message between servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoffError {
    /// The datagram has this length, which no datagram of its form has.
    Length(usize),
    /// The datagram does not start with [`HANDOFF_MAGIC`](super::HANDOFF_MAGIC).
    Magic,
    /// The version is unknown.
    Version(u8),
    /// The form is unknown.
    Form(u8),
    /// Sender and receiver are not two servers.
    Servers(u8, u8),
    /// A number that must not be zero is zero.
    Missing(&'static str),
    /// A field that must be zero here is not zero.
    Unused(&'static str),
    /// Reserved bytes are not zero.
    Reserved,
    /// Unknown flags are set.
    Flags(u8),
    /// The kind is unknown.
    Kind(u8),
    /// The reason is unknown.
    Reason(u8),
    /// The address family is not that of the flow's addresses.
    Family(u8),
    /// A message of this kind is shorter than its layout.
    Truncated(Kind),
    /// Bytes follow the end of a message of this kind.
    Trailing(Kind),
    /// The message is shorter than every message.
    NoMessage,
    /// A part has another length than its number and the total require, or a number beyond the last.
    Part,
    /// The total length of the parts is 0, or above the limit.
    Total(u32),
}

impl fmt::Display for HandoffError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandoffError::Length(bytes) => {
                write!(
                    f,
                    "a datagram of a move cannot have {bytes} bytes (the longest has {DATAGRAM_BYTES_MAX})"
                )
            }
            HandoffError::Magic => {
                f.write_str("this is not a datagram of a move (wrong port, or not Spillway)")
            }
            HandoffError::Version(version) => write!(
                f,
                "the datagram of a move has version {version}, this end supports {HANDOFF_VERSION}: \
                 upgrade the older server"
            ),
            HandoffError::Form(form) => write!(f, "unknown form {form} of a datagram"),
            HandoffError::Servers(sender, receiver) => {
                write!(f, "a move from server {sender} to server {receiver} is not one between two servers")
            }
            HandoffError::Missing(what) => write!(f, "the message names no {what}"),
            HandoffError::Unused(what) => write!(f, "the message has a {what}, which it must not have"),
            HandoffError::Reserved => f.write_str("reserved bytes of the message are not zero"),
            HandoffError::Flags(flags) => write!(f, "unknown flags {flags:#04x} in a greeting"),
            HandoffError::Kind(kind) => write!(f, "unknown kind {kind} of message between servers"),
            HandoffError::Reason(reason) => write!(f, "unknown reason {reason} of a refusal"),
            HandoffError::Family(family) => {
                write!(f, "address family {family} does not fit the flow's addresses")
            }
            HandoffError::Truncated(kind) => write!(f, "message {kind} is truncated"),
            HandoffError::Trailing(kind) => write!(f, "bytes follow the end of message {kind}"),
            HandoffError::NoMessage => f.write_str("the content is too short for a message"),
            HandoffError::Part => f.write_str("a part has a length or a number that its total excludes"),
            HandoffError::Total(bytes) => write!(f, "a total of {bytes} bytes is outside the limits"),
        }
    }
}

impl core::error::Error for HandoffError {}
