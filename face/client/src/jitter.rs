//! Randomness for who comes first: from the host once, then our own, which is enough to keep clients apart.

use std::io;

/// Marsaglia's xorshift.
#[derive(Debug)]
pub(crate) struct Jitter(u64);

impl Jitter {
    /// Not the same in two places.
    pub(crate) fn from_host() -> io::Result<Jitter> {
        let mut seed = [0; 8];
        seed.copy_from_slice(&spillway_keys::fresh_nonce()?[..8]);
        Ok(Jitter(u64::from_le_bytes(seed) | 1))
    }

    /// Any number.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From 0 to 1, less than 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}
