//! The keyed hash behind proofs and derived keys.

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// HMAC-SHA256 of a label, which ends with a zero byte, and what follows it.
pub(crate) fn keyed_hash(secret: &[u8; 32], label: &[u8], bytes: &[u8]) -> Hmac<Sha256> {
    // HMAC pads a key that is shorter than a block, so a block of zeros after the secret is the same key.
    let mut block = zeroize::Zeroizing::new([0; 64]);
    block[..secret.len()].copy_from_slice(secret);
    let mut mac = <Hmac<Sha256> as hmac::digest::KeyInit>::new((&*block).into());
    mac.update(label);
    mac.update(bytes);
    mac
}
