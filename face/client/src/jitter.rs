//! Seeds for the jitter that spreads clients in time.

use std::io;

pub(crate) fn seed() -> io::Result<u64> {
    let mut seed = [0; 8];
    seed.copy_from_slice(&spillway_keys::fresh_nonce()?[..8]);
    Ok(u64::from_le_bytes(seed))
}
