use spillway_wire::preamble::NONCE_BYTES;
use zeroize::{Zeroize, ZeroizeOnDrop};

const EPHEMERAL_BYTES: usize = 32;

/// A nonce and an ephemeral secret for one end of one link only. Wiped when dropped and never printed.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct LinkRandomness {
    nonce: [u8; NONCE_BYTES],
    ephemeral: [u8; EPHEMERAL_BYTES],
}

impl LinkRandomness {
    /// Number of random bytes that [`LinkRandomness::from_random`] needs.
    pub const BYTES: usize = NONCE_BYTES + EPHEMERAL_BYTES;

    /// `bytes` must come from a cryptographic random generator and must not have been used before.
    pub fn from_random(bytes: [u8; LinkRandomness::BYTES]) -> LinkRandomness {
        let mut randomness = LinkRandomness { nonce: [0; NONCE_BYTES], ephemeral: [0; EPHEMERAL_BYTES] };
        randomness.nonce.copy_from_slice(&bytes[..NONCE_BYTES]);
        randomness.ephemeral.copy_from_slice(&bytes[NONCE_BYTES..]);
        randomness
    }

    /// Fills the nonce and the secret by `random`, a cryptographic random generator.
    pub fn generate(mut random: impl FnMut(&mut [u8])) -> LinkRandomness {
        let mut randomness = LinkRandomness { nonce: [0; NONCE_BYTES], ephemeral: [0; EPHEMERAL_BYTES] };
        random(&mut randomness.nonce);
        random(&mut randomness.ephemeral);
        randomness
    }

    /// The nonce, which is sent unencrypted.
    pub fn nonce(&self) -> [u8; NONCE_BYTES] {
        self.nonce
    }

    pub(crate) fn ephemeral(&self) -> &[u8; EPHEMERAL_BYTES] {
        &self.ephemeral
    }
}

impl core::fmt::Debug for LinkRandomness {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("LinkRandomness")
    }
}
