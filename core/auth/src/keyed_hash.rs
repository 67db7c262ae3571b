//! The keyed hash behind proofs and derived keys.

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// HMAC-SHA256 of `label` followed by `bytes`. `label` must end with a zero byte, which separates it from `bytes`.
pub(crate) fn keyed_hash(secret: &[u8; 32], label: &[u8], bytes: &[u8]) -> Hmac<Sha256> {
    // `new` takes a whole block, and so cannot fail. The zeros do not change the key: HMAC pads a shorter key with the
    // same zeros (RFC 2104 §2).
    let mut block = zeroize::Zeroizing::new([0; 64]);
    block[..secret.len()].copy_from_slice(secret);
    let mut mac = <Hmac<Sha256> as hmac::digest::KeyInit>::new((&*block).into());
    mac.update(label);
    mac.update(bytes);
    mac
}
