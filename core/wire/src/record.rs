//! Records of an encrypted link (link version 4). Batches are cut into records before they are sent.
//!
//! ```text
//! sealed length, 2 bytes | its tag, 16 bytes | ciphertext, 1 to 16,384 bytes | tag, 16 bytes
//! ```
//!
//! The length has its own authentication tag: a receiver that trusted a length altered on the path would wait for bytes
//! that the peer never sends.

use core::fmt;

/// Bytes of an authentication tag.
pub const RECORD_TAG_BYTES: usize = 16;
/// Bytes of the length field before it is sealed: the number of plaintext bytes, in network order.
pub const RECORD_LENGTH_BYTES: usize = 2;
/// Bytes of the sealed length before each record.
pub const RECORD_HEADER_BYTES: usize = RECORD_LENGTH_BYTES + RECORD_TAG_BYTES;
/// Maximum plaintext bytes in one record.
pub const RECORD_PLAIN_BYTES_MAX: usize = 16 * 1024;
/// Maximum bytes of a record, which is also the most that a receiver must buffer.
pub const RECORD_BYTES_MAX: usize = RECORD_HEADER_BYTES + RECORD_PLAIN_BYTES_MAX + RECORD_TAG_BYTES;

/// The length field of a record is 0 or above [`RECORD_PLAIN_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidRecordLength(pub u16);

impl fmt::Display for InvalidRecordLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invalid record length {}: a record has 1 to {RECORD_PLAIN_BYTES_MAX} plaintext bytes",
            self.0
        )
    }
}

impl core::error::Error for InvalidRecordLength {}

/// The length field of a record with `plain_bytes` bytes of a batch, from 1 to [`RECORD_PLAIN_BYTES_MAX`].
pub fn emit_record_length(plain_bytes: usize) -> [u8; RECORD_LENGTH_BYTES] {
    debug_assert!(
        (1..=RECORD_PLAIN_BYTES_MAX).contains(&plain_bytes),
        "a record should hold 1 to 16,384 bytes"
    );
    #[expect(clippy::cast_possible_truncation, reason = "at most RECORD_PLAIN_BYTES_MAX, 16 KiB")]
    let length = plain_bytes as u16;
    length.to_be_bytes()
}

/// Reads the number of plaintext bytes in the record.
///
/// # Errors
/// The length is 0 or too large. The rest of the stream cannot be parsed.
pub fn parse_record_length(bytes: [u8; RECORD_LENGTH_BYTES]) -> Result<usize, InvalidRecordLength> {
    let length = u16::from_be_bytes(bytes);
    match usize::from(length) {
        plain @ 1..=RECORD_PLAIN_BYTES_MAX => Ok(plain),
        _ => Err(InvalidRecordLength(length)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lengths_within_the_bounds_are_accepted() {
        for plain in [1, 2, 255, RECORD_PLAIN_BYTES_MAX] {
            assert_eq!(parse_record_length(emit_record_length(plain)), Ok(plain));
        }
        let lengths = (0..=u16::MAX).filter(|length| parse_record_length(length.to_be_bytes()).is_ok());
        assert_eq!(lengths.clone().next(), Some(1), "the shortest record should have 1 byte");
        assert_eq!(lengths.max().map(usize::from), Some(RECORD_PLAIN_BYTES_MAX));
    }
}
