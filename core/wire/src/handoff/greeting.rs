//! Greetings, by which two servers learn each other's present run.

use core::num::NonZeroU64;

use super::{GREETING_CONTENT_BYTES, HandoffError, field};

/// The content of a greeting. The receiver accepts the sender's run only if the greeting echoes the number of the
/// receiver's own greeting: a copy of an earlier run's greeting does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Number of the greeting, which the sender does not use for another session in the same run.
    pub number: NonZeroU64,
    /// The number of the receiver's greeting that this one answers.
    pub echo: Option<NonZeroU64>,
    /// The sender has no session with the receiver's run yet, and waits for an answer.
    pub wants_answer: bool,
}

impl Greeting {
    /// The bytes of the content.
    pub fn emit(&self) -> [u8; GREETING_CONTENT_BYTES] {
        let mut bytes = [0; GREETING_CONTENT_BYTES];
        bytes[field::NUMBER].copy_from_slice(&self.number.get().to_be_bytes());
        let echo = self.echo.map_or(0, NonZeroU64::get);
        bytes[field::ECHO].copy_from_slice(&echo.to_be_bytes());
        bytes[field::GREETING_FLAGS] = u8::from(self.wants_answer);
        bytes
    }

    /// Parses the content of a greeting.
    ///
    /// # Errors
    /// The bytes are not a greeting of this version.
    pub fn parse(bytes: &[u8; GREETING_CONTENT_BYTES]) -> Result<Greeting, HandoffError> {
        let &[n0, n1, n2, n3, n4, n5, n6, n7, e0, e1, e2, e3, e4, e5, e6, e7, flags, ..] = bytes;
        if flags > 1 {
            return Err(HandoffError::Flags(flags));
        }
        if bytes[field::GREETING_RESERVED] != [0; 7] {
            return Err(HandoffError::Reserved);
        }
        let number = NonZeroU64::new(u64::from_be_bytes([n0, n1, n2, n3, n4, n5, n6, n7]));
        let echo = NonZeroU64::new(u64::from_be_bytes([e0, e1, e2, e3, e4, e5, e6, e7]));
        let number = number.ok_or(HandoffError::Missing("number of the greeting"))?;
        Ok(Greeting { number, echo, wants_answer: flags == 1 })
    }
}
