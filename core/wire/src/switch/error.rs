//! Why a control message is rejected.

use core::fmt;

use super::{MESSAGE_BYTES, SWITCH_VERSION};

/// Why bytes are not a valid control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageError {
    /// The datagram has this length instead of [`MESSAGE_BYTES`].
    Length(usize),
    /// The datagram does not start with [`SWITCH_MAGIC`](super::SWITCH_MAGIC).
    Magic,
    /// The version is unknown.
    Version(u8),
    /// The kind is unknown.
    Kind(u8),
    /// Unknown flags are set.
    Flags(u16),
    /// The sender's id is above 255.
    Sender(u32),
    /// The address family is not that of the client's or the service's address, or not 0 without these addresses.
    Family(u8),
    /// The status is unknown, or messages of this kind and direction do not have it.
    Status(u8),
    /// The state is unknown, or messages of this kind and direction do not have it.
    State(u8),
    /// An address that messages of this kind need is missing.
    Missing(&'static str),
    /// A field that messages of this kind do not use is not zero.
    Unused(&'static str),
    /// Reserved bytes are not zero.
    Reserved,
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageError::Length(bytes) => {
                write!(f, "a control message of the switch has {MESSAGE_BYTES} bytes, not {bytes}")
            }
            MessageError::Magic => {
                f.write_str("this is not a control message of the switch (wrong port, or not Spillway)")
            }
            MessageError::Version(version) => {
                write!(
                    f,
                    "the control message has version {version}, this end supports {SWITCH_VERSION}: \
                     upgrade the older end"
                )
            }
            MessageError::Kind(kind) => write!(f, "unknown kind {kind} of control message"),
            MessageError::Flags(flags) => write!(f, "unknown flags {flags:#06x} in a control message"),
            MessageError::Sender(sender) => write!(f, "sender {sender} is above 255, the highest server id"),
            MessageError::Family(family) => {
                write!(f, "address family {family} does not fit the message's addresses")
            }
            MessageError::Status(status) => write!(f, "status {status} does not fit the control message"),
            MessageError::State(state) => write!(f, "flow state {state} does not fit the control message"),
            MessageError::Missing(what) => write!(f, "the control message names no {what}"),
            MessageError::Unused(what) => {
                write!(f, "the control message has a {what}, which its kind does not use")
            }
            MessageError::Reserved => f.write_str("reserved bytes of the control message are not zero"),
        }
    }
}

impl core::error::Error for MessageError {}
