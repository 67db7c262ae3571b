//! Encrypted links (link version 4): a key exchange with forward secrecy, and records that are sealed with its keys.
//!
//! The handshake is Noise `NNpsk0` (Noise Protocol Framework, revision 34). The server is the initiator: its message
//! follows the welcome at once, and the opener may send data right after its own message, so encryption adds no round
//! trip. The prologue is the link's preamble, and the pre-shared key is derived from the link's key.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use snow::{Builder, HandshakeState, TransportState};
use spillway_wire::preamble::EXCHANGE_BYTES;
use spillway_wire::record::{
    RECORD_HEADER_BYTES, RECORD_LENGTH_BYTES, RECORD_PLAIN_BYTES_MAX, RECORD_TAG_BYTES, emit_record_length,
};
use zeroize::Zeroizing;

use crate::fresh::LinkRandomness;
use crate::key::Key;
use crate::primitives::Primitives;

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

/// Number of records that are sealed with one key. They hold at most 1 GiB, far below the limit of AES-GCM (2^24.5
/// records of this length, RFC 8446 §5.5).
pub const RECORDS_PER_KEY: u64 = 1 << 16;

/// Authentication failed: the bytes are not those that the peer sent next, or the peer has another key. Close the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAuthentic;

impl fmt::Display for NotAuthentic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes were altered, inserted, lost or repeated on the way")
    }
}

impl core::error::Error for NotAuthentic {}

fn new_handshake(
    key: &Key,
    prologue: &[u8],
    randomness: &LinkRandomness,
    is_initiator: bool,
) -> Result<HandshakeState, NotAuthentic> {
    let primitives = Primitives { ephemeral: Zeroizing::new(*randomness.ephemeral()) };
    let shared = key.derive(b"spillway link 4 exchange\0", b"");
    let build = || -> Result<HandshakeState, snow::Error> {
        let builder = Builder::with_resolver(PATTERN.parse()?, Box::new(primitives))
            .psk(0, shared.secret())?
            .prologue(prologue)?;
        if is_initiator { builder.build_initiator() } else { builder.build_responder() }
    };
    build().map_err(|error| {
        debug_assert!(false, "the Noise pattern and its primitives should be supported: {error}");
        NotAuthentic
    })
}

/// The server's side of a key exchange that waits for the opener's message.
pub struct Exchange(Box<HandshakeState>);

impl Exchange {
    /// Starts the exchange at the server and returns the server's message for the opener.
    ///
    /// # Errors
    /// The Noise library rejected the pattern. Cannot happen, because the pattern is a constant.
    pub fn offer(
        key: &Key,
        prologue: &[u8],
        randomness: &LinkRandomness,
    ) -> Result<(Exchange, [u8; EXCHANGE_BYTES]), NotAuthentic> {
        let mut state = new_handshake(key, prologue, randomness, true)?;
        let mut message = [0; EXCHANGE_BYTES];
        match state.write_message(&[], &mut message) {
            Ok(EXCHANGE_BYTES) => Ok((Exchange(Box::new(state)), message)),
            _ => Err(NotAuthentic),
        }
    }

    /// Completes the exchange at the opener and returns the opener's message for the server.
    ///
    /// # Errors
    /// The server's message was altered, or the server has another key or another preamble.
    pub fn answer(
        key: &Key,
        prologue: &[u8],
        randomness: &LinkRandomness,
        offer: &[u8; EXCHANGE_BYTES],
    ) -> Result<(Channel, [u8; EXCHANGE_BYTES]), NotAuthentic> {
        let mut state = new_handshake(key, prologue, randomness, false)?;
        state.read_message(offer, &mut []).map_err(|_| NotAuthentic)?;
        let mut message = [0; EXCHANGE_BYTES];
        match state.write_message(&[], &mut message) {
            Ok(EXCHANGE_BYTES) => Ok((Channel::new(state)?, message)),
            _ => Err(NotAuthentic),
        }
    }

    /// Completes the exchange at the server.
    ///
    /// # Errors
    /// The opener's message was altered, or the opener has another key or another preamble.
    pub fn finish(mut self, answer: &[u8; EXCHANGE_BYTES]) -> Result<Channel, NotAuthentic> {
        self.0.read_message(answer, &mut []).map_err(|_| NotAuthentic)?;
        Channel::new(*self.0)
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exchange")
    }
}

/// The keys and record counters of both directions of an encrypted link.
pub struct Channel(TransportState);

impl Channel {
    fn new(state: HandshakeState) -> Result<Channel, NotAuthentic> {
        state.into_transport_mode().map(Channel).map_err(|_| NotAuthentic)
    }

    /// Appends `plaintext` to `out` as records.
    pub fn seal(&mut self, plaintext: &[u8], out: &mut Vec<u8>) {
        let records = plaintext.len().div_ceil(RECORD_PLAIN_BYTES_MAX);
        out.reserve(plaintext.len() + records * (RECORD_HEADER_BYTES + RECORD_TAG_BYTES));
        for chunk in plaintext.chunks(RECORD_PLAIN_BYTES_MAX) {
            if is_rekey_due(self.0.sending_nonce()) {
                self.0.rekey_outgoing();
            }
            self.seal_message(&emit_record_length(chunk.len()), out);
            self.seal_message(chunk, out);
        }
    }

    fn seal_message(&mut self, plaintext: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + plaintext.len() + RECORD_TAG_BYTES, 0);
        let sealed = self.0.write_message(plaintext, &mut out[start..]);
        // Sealing fails only after 2^64 messages. The peer would then reject the bytes and close the link.
        debug_assert_eq!(
            sealed,
            Ok(plaintext.len() + RECORD_TAG_BYTES),
            "sealing should fail only after 2^64 messages"
        );
    }

    /// Opens the length of the next record.
    ///
    /// # Errors
    /// The bytes are not the next length that the peer sealed. Close the link.
    pub fn open_length(
        &mut self,
        sealed: &[u8; RECORD_HEADER_BYTES],
    ) -> Result<[u8; RECORD_LENGTH_BYTES], NotAuthentic> {
        if is_rekey_due(self.0.receiving_nonce()) {
            self.0.rekey_incoming();
        }
        let mut length = [0; RECORD_LENGTH_BYTES];
        self.open(sealed, &mut length)?;
        Ok(length)
    }

    /// Opens the bytes that follow a length. `out` must be `RECORD_TAG_BYTES` shorter than `sealed`.
    ///
    /// # Errors
    /// The bytes are not the next ones that the peer sealed. Close the link.
    pub fn open(&mut self, sealed: &[u8], out: &mut [u8]) -> Result<(), NotAuthentic> {
        match self.0.read_message(sealed, out) {
            Ok(length) if length == out.len() => Ok(()),
            _ => Err(NotAuthentic),
        }
    }
}

/// Whether the key must change before the Noise message with this number. A record is two messages: length and bytes.
fn is_rekey_due(message_number: u64) -> bool {
    message_number > 0 && message_number.is_multiple_of(2 * RECORDS_PER_KEY)
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Channel")
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn randomness(byte: u8) -> LinkRandomness {
        LinkRandomness::from_random([byte; LinkRandomness::BYTES])
    }

    fn server_and_opener_channels() -> (Channel, Channel) {
        let key = Key::from_secret([3; 32]);
        let (exchange, offer) = Exchange::offer(&key, b"preamble", &randomness(1)).unwrap();
        let (opener, answer) = Exchange::answer(&key, b"preamble", &randomness(2), &offer).unwrap();
        (exchange.finish(&answer).unwrap(), opener)
    }

    fn open(channel: &mut Channel, sealed: &[u8]) -> Result<Vec<u8>, NotAuthentic> {
        let (header, rest) = sealed.split_first_chunk().unwrap();
        let length = u16::from_be_bytes(channel.open_length(header)?);
        assert_eq!(usize::from(length) + RECORD_TAG_BYTES, rest.len());
        let mut out = vec![0; usize::from(length)];
        channel.open(rest, &mut out)?;
        Ok(out)
    }

    #[test]
    fn records_sealed_at_one_end_open_at_the_other() {
        let (mut server, mut opener) = server_and_opener_channels();
        for (from, to) in [(0, 1), (1, 0), (0, 1)] {
            let ends = [&mut server, &mut opener];
            let mut sealed = Vec::new();
            ends[from].seal(b"get x\r\n", &mut sealed);
            assert_eq!(sealed.len(), 7 + RECORD_HEADER_BYTES + RECORD_TAG_BYTES);
            assert!(
                !sealed.windows(5).any(|window| window == b"get x"),
                "a sealed record should not contain its plain text"
            );
            assert_eq!(open(ends[to], &sealed), Ok(b"get x\r\n".to_vec()));
        }
    }

    #[test]
    fn record_opens_only_once_in_order_and_unaltered() {
        let (mut server, mut opener) = server_and_opener_channels();
        let (mut first, mut second) = (Vec::new(), Vec::new());
        server.seal(b"first", &mut first);
        server.seal(b"second", &mut second);
        assert_eq!(
            open(&mut opener, &second),
            Err(NotAuthentic),
            "a record should not open before the first one"
        );
        for bit in 0..first.len() * 8 {
            let (mut server, mut opener) = server_and_opener_channels();
            let mut altered = Vec::new();
            server.seal(b"first", &mut altered);
            altered[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                open(&mut opener, &altered),
                Err(NotAuthentic),
                "a record with bit {bit} flipped should not open"
            );
        }
        assert_eq!(open(&mut server, &first), Err(NotAuthentic), "a reflected record should not open");
        assert_eq!(open(&mut opener, &first), Ok(b"first".to_vec()));
        assert_eq!(open(&mut opener, &first), Err(NotAuthentic), "a repeated record should not open");
        assert_eq!(open(&mut opener, &second), Ok(b"second".to_vec()));
    }

    #[test]
    fn exchange_fails_with_another_key_another_preamble_or_altered_bytes() {
        let (key, other) = (Key::from_secret([3; 32]), Key::from_secret([4; 32]));
        let (_, offer) = Exchange::offer(&key, b"preamble", &randomness(1)).unwrap();
        assert!(
            Exchange::answer(&other, b"preamble", &randomness(2), &offer).is_err(),
            "an offer should be rejected with another key"
        );
        assert!(
            Exchange::answer(&key, b"another preamble", &randomness(2), &offer).is_err(),
            "an offer should be rejected with another preamble"
        );
        let (_, answer) = Exchange::answer(&key, b"preamble", &randomness(2), &offer).unwrap();
        for bit in 0..EXCHANGE_BYTES * 8 {
            let (mut offered, mut answered) = (offer, answer);
            offered[bit / 8] ^= 1 << (bit % 8);
            answered[bit / 8] ^= 1 << (bit % 8);
            assert!(
                Exchange::answer(&key, b"preamble", &randomness(2), &offered).is_err(),
                "an offer with bit {bit} flipped should be rejected"
            );
            let (exchange, _) = Exchange::offer(&key, b"preamble", &randomness(1)).unwrap();
            assert!(
                exchange.finish(&answered).is_err(),
                "an answer with bit {bit} flipped should be rejected"
            );
        }
    }

    #[test]
    fn keys_change_after_a_fixed_number_of_records_at_both_ends() {
        let (mut server, mut opener) = server_and_opener_channels();
        let mut sealed = Vec::new();
        for record in 0..RECORDS_PER_KEY * 2 + 10 {
            sealed.clear();
            server.seal(b"x", &mut sealed);
            assert_eq!(
                open(&mut opener, &sealed).as_deref(),
                Ok(&b"x"[..]),
                "record {record} should open with the present key"
            );
        }
        // An end that keeps the old key cannot open the next record.
        let (mut server, mut opener) = server_and_opener_channels();
        for _ in 0..RECORDS_PER_KEY {
            sealed.clear();
            server.seal(b"x", &mut sealed);
            open(&mut opener, &sealed).unwrap();
        }
        sealed.clear();
        server.seal(b"x", &mut sealed);
        assert!(
            opener.0.read_message(&sealed[..RECORD_HEADER_BYTES], &mut [0; 2]).is_err(),
            "a header alone should not open"
        );
    }
}
