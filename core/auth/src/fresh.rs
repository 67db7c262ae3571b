//! Random bytes for one link.

use spillway_wire::preamble::NONCE_BYTES;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bytes of an ephemeral secret.
const EPHEMERAL_BYTES: usize = 32;

/// What one end of one link needs of randomness: a nonce and an ephemeral secret. Used for one link only, wiped when
/// dropped, never printed.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Fresh {
    nonce: [u8; NONCE_BYTES],
    ephemeral: [u8; EPHEMERAL_BYTES],
}

impl Fresh {
    /// Random bytes that it is made of.
    pub const BYTES: usize = NONCE_BYTES + EPHEMERAL_BYTES;

    /// Of random bytes that were never used before.
    pub fn from_random(bytes: [u8; Fresh::BYTES]) -> Fresh {
        let mut fresh = Fresh { nonce: [0; NONCE_BYTES], ephemeral: [0; EPHEMERAL_BYTES] };
        fresh.nonce.copy_from_slice(&bytes[..NONCE_BYTES]);
        fresh.ephemeral.copy_from_slice(&bytes[NONCE_BYTES..]);
        fresh
    }

    /// As `random` fills it.
    pub fn filled(mut random: impl FnMut(&mut [u8])) -> Fresh {
        let mut fresh = Fresh { nonce: [0; NONCE_BYTES], ephemeral: [0; EPHEMERAL_BYTES] };
        random(&mut fresh.nonce);
        random(&mut fresh.ephemeral);
        fresh
    }

    /// The nonce, which is no secret.
    pub fn nonce(&self) -> [u8; NONCE_BYTES] {
        self.nonce
    }

    pub(crate) fn ephemeral(&self) -> &[u8; EPHEMERAL_BYTES] {
        &self.ephemeral
    }
}

impl core::fmt::Debug for Fresh {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Fresh")
    }
}
