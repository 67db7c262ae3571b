//! Control messages of the switch, authenticated with the key that a server shares with the switch.

use core::borrow::{Borrow, BorrowMut};
use core::fmt;

use siphasher::sip::SipHasher24;
use spillway_wire::switch::{MESSAGE_BYTES, Message, MessageError, TAG_BYTES, View};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::key::Key;

/// Length of a switch key in bytes.
pub const SWITCH_KEY_BYTES: usize = 16;

/// The secret that one server, or the switch's daemon, shares with the switch. Wiped when dropped and never printed.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct SwitchKey([u8; SWITCH_KEY_BYTES]);

/// Why a received control message was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchRejection {
    /// The datagram is not a valid control message.
    Malformed(MessageError),
    /// The sender does not have the key, or the message was altered.
    Tag,
}

impl SwitchKey {
    /// `secret` must come from a cryptographic random generator.
    pub const fn from_bytes(secret: [u8; SWITCH_KEY_BYTES]) -> SwitchKey {
        SwitchKey(secret)
    }

    /// The secret, for the map of the program in the kernel. The caller must wipe its copies.
    pub const fn as_bytes(&self) -> &[u8; SWITCH_KEY_BYTES] {
        &self.0
    }

    /// The tag of these bytes: SipHash-2-4 (Aumasson and Bernstein 2012), in little-endian order.
    pub fn tag(&self, bytes: &[u8]) -> [u8; TAG_BYTES] {
        SipHasher24::new_with_key(&self.0).hash(bytes).to_le_bytes()
    }

    /// Whether `tag` is the tag of these bytes. The comparison takes constant time.
    pub fn verify(&self, bytes: &[u8], tag: &[u8; TAG_BYTES]) -> bool {
        self.tag(bytes).ct_eq(tag).into()
    }

    /// Replaces a message's tag by the tag under this key.
    pub fn tag_message<B: BorrowMut<[u8; MESSAGE_BYTES]>>(&self, message: &mut View<B>) {
        let tag = self.tag(message.tagged());
        message.set_tag(tag);
    }

    /// Whether a message's tag is valid under this key.
    pub fn verify_message<B: Borrow<[u8; MESSAGE_BYTES]>>(&self, message: &View<B>) -> bool {
        self.verify(message.tagged(), &message.tag())
    }

    /// Emits a message with its tag: the payload of a datagram.
    pub fn emit(&self, message: &Message) -> [u8; MESSAGE_BYTES] {
        let mut view = message.emit();
        self.tag_message(&mut view);
        view.into_inner()
    }

    /// Verifies and parses the payload of a datagram. The caller must still compare an answer's sender, sequence and
    /// epoch with those of its request.
    ///
    /// # Errors
    /// The message is not authentic, or not valid. Ignore the datagram and keep waiting: the genuine one may still
    /// arrive.
    pub fn parse(&self, payload: &[u8]) -> Result<Message, SwitchRejection> {
        let view = View::of(payload)?;
        if !self.verify_message(&view) {
            return Err(SwitchRejection::Tag);
        }
        Ok(Message::parse(&view)?)
    }
}

impl Key {
    /// Derives the switch key of a key file.
    pub fn switch_key(&self) -> SwitchKey {
        let derived = self.derive(b"spillway switch\0", b"");
        let mut key = SwitchKey([0; SWITCH_KEY_BYTES]);
        key.0.copy_from_slice(&derived.secret()[..SWITCH_KEY_BYTES]);
        key
    }
}

impl ConstantTimeEq for SwitchKey {
    fn ct_eq(&self, other: &SwitchKey) -> subtle::Choice {
        self.0.ct_eq(&other.0)
    }
}

impl PartialEq for SwitchKey {
    fn eq(&self, other: &SwitchKey) -> bool {
        self.ct_eq(other).into()
    }
}

impl Eq for SwitchKey {}

impl fmt::Debug for SwitchKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SwitchKey(…)")
    }
}

impl fmt::Display for SwitchRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwitchRejection::Malformed(error) => error.fmt(f),
            SwitchRejection::Tag => f.write_str(
                "wrong tag of a control message: the switch has another key for this server, or bytes were altered",
            ),
        }
    }
}

impl core::error::Error for SwitchRejection {}

impl From<MessageError> for SwitchRejection {
    fn from(error: MessageError) -> SwitchRejection {
        SwitchRejection::Malformed(error)
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use spillway_wire::switch::{Body, Kind, Request, ServerId};

    use super::*;

    const PAPER_KEY: SwitchKey = SwitchKey([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

    fn hello() -> Message {
        Message { sender: ServerId(3), sequence: 7, epoch: 9, body: Body::Request(Request::Hello) }
    }

    /// Appendix A of the paper: key 00..0f, message 00..0e, hash a129ca6149be45e5.
    #[test]
    fn tag_equals_the_vector_of_the_paper() {
        let message: [u8; 15] = core::array::from_fn(|at| at as u8);
        let expected = 0xa129_ca61_49be_45e5_u64;
        assert_eq!(PAPER_KEY.tag(&message), expected.to_le_bytes());
        assert!(PAPER_KEY.verify(&message, &expected.to_le_bytes()));
        assert!(!PAPER_KEY.verify(&message, &expected.to_be_bytes()));
    }

    /// Some of `vectors_sip64` in the authors' reference code: key 00..0f, message 00..(length − 1).
    #[test]
    fn tags_equal_the_vectors_of_the_reference_code() {
        let message: [u8; 63] = core::array::from_fn(|at| at as u8);
        for (length, tag) in [
            (0, [0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72]),
            (1, [0xfd, 0x67, 0xdc, 0x93, 0xc5, 0x39, 0xf8, 0x74]),
            (2, [0x5a, 0x4f, 0xa9, 0xd9, 0x09, 0x80, 0x6c, 0x0d]),
            (7, [0x37, 0xd1, 0x01, 0x8b, 0xf5, 0x00, 0x02, 0xab]),
            (8, [0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93]),
            (9, [0xb0, 0xe4, 0xa9, 0x0b, 0xdf, 0x82, 0x00, 0x9e]),
            (63, [0x72, 0x45, 0x06, 0xeb, 0x4c, 0x32, 0x8a, 0x95]),
        ] {
            assert_eq!(PAPER_KEY.tag(&message[..length]), tag, "{length} bytes");
        }
    }

    #[test]
    fn only_an_unaltered_message_under_the_same_key_is_accepted() {
        let valid = PAPER_KEY.emit(&hello());
        assert_eq!(PAPER_KEY.parse(&valid), Ok(hello()));
        let other = SwitchKey::from_bytes([1; 16]);
        assert_eq!(other.parse(&valid), Err(SwitchRejection::Tag));
        for bit in 0..MESSAGE_BYTES * 8 {
            let mut altered = valid;
            altered[bit / 8] ^= 1 << (bit % 8);
            let expected =
                if bit < 64 { SwitchRejection::Malformed(MessageError::Magic) } else { SwitchRejection::Tag };
            assert_eq!(PAPER_KEY.parse(&altered), Err(expected), "bit {bit}");
        }
        let cut = PAPER_KEY.parse(&valid[1..]);
        assert_eq!(cut, Err(SwitchRejection::Malformed(MessageError::Length(MESSAGE_BYTES - 1))));
    }

    #[test]
    fn an_authentic_message_that_is_not_valid_is_rejected() {
        let mut view = View::blank(Kind::Get);
        PAPER_KEY.tag_message(&mut view);
        assert!(PAPER_KEY.verify_message(&view));
        let parsed = PAPER_KEY.parse(view.bytes());
        assert_eq!(parsed, Err(SwitchRejection::Malformed(MessageError::Missing("client"))));
    }

    #[test]
    fn a_key_is_wiped_when_it_is_dropped() {
        fn assert_wiped<T: ZeroizeOnDrop>() {}
        assert_wiped::<SwitchKey>();
        let mut key = PAPER_KEY;
        key.zeroize();
        assert_eq!(*key.as_bytes(), [0; SWITCH_KEY_BYTES]);
    }

    #[test]
    fn debug_output_contains_no_secret() {
        assert_eq!(format!("{:?}", SwitchKey([0xab; 16])), "SwitchKey(…)");
    }

    #[test]
    fn the_key_of_a_key_file_depends_on_its_secret() {
        let (first, second) = (Key::from_secret([1; 32]), Key::from_secret([2; 32]));
        assert_eq!(first.switch_key(), Key::from_secret([1; 32]).switch_key());
        assert_ne!(first.switch_key(), second.switch_key());
        assert_ne!(
            first.switch_key().as_bytes(),
            &first.secret()[..16],
            "the key should not be the secret itself"
        );
    }
}
