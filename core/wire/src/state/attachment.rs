//! The application's own bytes, which move with a connection.

use alloc::boxed::Box;
use core::fmt;

use crate::Bytes;

/// Maximum bytes of an attachment.
pub const ATTACHMENT_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes of the name of an attachment's protocol.
pub const PROTOCOL_BYTES_MAX: usize = 64;

/// The application's own bytes, which move with a connection, for example a partly received request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    protocol: Box<str>,
    bytes: Bytes,
}

/// Why bytes cannot be attached to a connection's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachmentError {
    /// The protocol's name is empty, longer than [`PROTOCOL_BYTES_MAX`], or has other characters than visible ASCII.
    Protocol,
    /// The attachment would have this many bytes, more than [`ATTACHMENT_BYTES_MAX`].
    TooLong(usize),
}

impl fmt::Display for AttachmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachmentError::Protocol => write!(
                f,
                "the name of an attachment's protocol must have 1 to {PROTOCOL_BYTES_MAX} visible ASCII characters"
            ),
            AttachmentError::TooLong(bytes) => write!(
                f,
                "an attachment of {bytes} bytes is too long: at most {ATTACHMENT_BYTES_MAX} move with a connection"
            ),
        }
    }
}

impl core::error::Error for AttachmentError {}

impl Attachment {
    /// An attachment in the format of a protocol. The importing application must know the protocol by its name, or refuse
    /// the connection.
    ///
    /// # Errors
    /// The name or the length is out of bounds.
    pub fn new(protocol: &str, bytes: impl Into<Bytes>) -> Result<Attachment, AttachmentError> {
        let bytes = bytes.into();
        let has_valid_name = (1..=PROTOCOL_BYTES_MAX).contains(&protocol.len())
            && protocol.bytes().all(|byte| byte.is_ascii_graphic());
        if !has_valid_name {
            return Err(AttachmentError::Protocol);
        }
        if bytes.len() > ATTACHMENT_BYTES_MAX {
            return Err(AttachmentError::TooLong(bytes.len()));
        }
        Ok(Attachment { protocol: protocol.into(), bytes })
    }

    /// Name of the protocol: 1 to [`PROTOCOL_BYTES_MAX`] visible ASCII characters.
    pub fn protocol(&self) -> &str {
        &self.protocol
    }

    /// The attached bytes, at most [`ATTACHMENT_BYTES_MAX`].
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn names_and_lengths_are_bounded() {
        let longest = "n".repeat(PROTOCOL_BYTES_MAX);
        let full = Attachment::new(&longest, vec![7; ATTACHMENT_BYTES_MAX]).unwrap();
        assert_eq!((full.protocol().len(), full.bytes().len()), (PROTOCOL_BYTES_MAX, ATTACHMENT_BYTES_MAX));
        for name in ["", "two words", "ünicode", "line\n", &"n".repeat(PROTOCOL_BYTES_MAX + 1)] {
            assert_eq!(Attachment::new(name, vec![]), Err(AttachmentError::Protocol), "{name:?}");
        }
        let beyond = ATTACHMENT_BYTES_MAX + 1;
        assert_eq!(Attachment::new("kv", vec![7; beyond]), Err(AttachmentError::TooLong(beyond)));
    }
}
