//! Shared secrets, and the text of key files.

use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;

use hmac::Mac;
use sha2::{Digest, Sha256};
use spillway_wire::preamble::KeyId;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::keyed_hash::keyed_hash;

/// Length of a key's secret in bytes.
pub const SECRET_BYTES: usize = 32;

const PREFIX: &str = "spillway-key-1 ";

/// A shared secret and its identifier. The secret is wiped when dropped and never printed. A move of the value copies a
/// pointer, and leaves no copy of the secret behind.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Key {
    #[zeroize(skip)]
    id: KeyId,
    secret: Box<[u8; SECRET_BYTES]>,
}

/// Why the text of a key file was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The text does not begin with `spillway-key-1 `.
    Prefix,
    /// The text has this number of digits instead of 64.
    Length(usize),
    /// A character is not a hexadecimal digit.
    Digit,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Prefix => write!(f, "not a key: it must begin with \"{PREFIX}\""),
            KeyError::Length(digits) => {
                write!(f, "a key has {} hexadecimal digits, this one {digits}", SECRET_BYTES * 2)
            }
            KeyError::Digit => {
                f.write_str("the key contains a character that is not a hexadecimal digit (0-9, a-f)")
            }
        }
    }
}

impl core::error::Error for KeyError {}

impl Key {
    /// `secret` must come from a cryptographic random generator. The caller must wipe its own copies.
    pub fn from_secret(mut secret: [u8; SECRET_BYTES]) -> Key {
        let mut hash = Sha256::new();
        hash.update(b"spillway key id\0");
        hash.update(secret);
        let mut id = [0; 8];
        id.copy_from_slice(&hash.finalize()[..8]);
        let mut own = Box::new([0; SECRET_BYTES]);
        own.copy_from_slice(&secret);
        secret.zeroize();
        Key { id: KeyId(id), secret: own }
    }

    /// The well-known key of loopback links without a configured key. It protects nothing: code that accepts it must
    /// check that both ends of the link are loopback addresses.
    pub fn loopback_only() -> Key {
        Key::from_secret([0; SECRET_BYTES])
    }

    /// Whether this is the [well-known key](Self::loopback_only), which protects nothing.
    pub fn is_loopback_only(&self) -> bool {
        self.id == Key::loopback_only().id
    }

    /// Derives the key for one purpose: the keyed hash of `label` followed by `context`. `label` is the purpose's name
    /// and must end with a zero byte.
    pub fn derive(&self, label: &[u8], context: &[u8]) -> Key {
        Key::from_secret(*Zeroizing::new(
            keyed_hash(&self.secret, label, context).finalize().into_bytes().into(),
        ))
    }

    /// Reads the text of a key file: `spillway-key-1 ` and 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Key, KeyError> {
        let digits = text.trim().strip_prefix(PREFIX).ok_or(KeyError::Prefix)?.as_bytes();
        if digits.len() != SECRET_BYTES * 2 {
            return Err(KeyError::Length(digits.len()));
        }
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        for (byte, pair) in secret.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = parse_digit(pair[0])? << 4 | parse_digit(pair[1])?;
        }
        Ok(Key::from_secret(*secret))
    }

    /// The text of a key file, with a line end.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(PREFIX.len() + SECRET_BYTES * 2 + 1));
        text.push_str(PREFIX);
        for byte in self.secret.iter().copied() {
            for nibble in [byte >> 4, byte & 15] {
                text.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
            }
        }
        text.push('\n');
        text
    }

    /// The key's identifier, which may be logged and sent unencrypted: a hash of the secret.
    pub fn id(&self) -> KeyId {
        self.id
    }

    pub(crate) fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a digit is at most 15")]
fn parse_digit(character: u8) -> Result<u8, KeyError> {
    char::from(character).to_digit(16).map(|value| value as u8).ok_or(KeyError::Digit)
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[test]
    fn text_of_a_key_parses_to_the_same_key() {
        let key = Key::from_secret(core::array::from_fn(|i| (i * 7) as u8));
        let parsed = Key::parse(&key.to_text()).unwrap();
        assert_eq!(parsed.secret, key.secret);
        assert_eq!(parsed.id(), key.id());
    }

    #[test]
    fn malformed_texts_are_rejected_with_the_cause() {
        assert_eq!(Key::parse("").unwrap_err(), KeyError::Prefix);
        assert_eq!(Key::parse("spillway-key-1 abc").unwrap_err(), KeyError::Length(3));
        let text = format!("spillway-key-1 {}", "zz".repeat(32));
        assert_eq!(Key::parse(&text).unwrap_err(), KeyError::Digit);
    }

    #[test]
    fn a_move_copies_no_secret_and_a_dropped_key_is_wiped() {
        fn assert_wiped<T: ZeroizeOnDrop>() {}
        assert_wiped::<Key>();
        assert!(size_of::<Key>() < SECRET_BYTES, "the secret is not part of the value that moves");
        let mut key = Key::from_secret([0xab; 32]);
        key.zeroize();
        assert_eq!(*key.secret, [0; SECRET_BYTES]);
    }

    #[test]
    fn debug_output_contains_no_secret() {
        let key = Key::from_secret([0xab; 32]);
        assert_eq!(format!("{key:?}"), format!("Key({})", key.id()));
        assert!(!format!("{key:?}").contains("abab"), "the debug output should not contain the secret");
    }
}
