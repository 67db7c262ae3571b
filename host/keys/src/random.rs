//! Random bytes from the kernel.

use std::io;

use spillway_auth::{Key, LinkRandomness, SECRET_BYTES};
use spillway_wire::preamble::NONCE_BYTES;
use zeroize::Zeroizing;

/// Random bytes for one end of one link. Fails only where the kernel has no `getrandom`.
pub fn fresh_link_randomness() -> io::Result<LinkRandomness> {
    let mut bytes = Zeroizing::new([0; LinkRandomness::BYTES]);
    getrandom::fill(&mut *bytes)?;
    Ok(LinkRandomness::from_random(*bytes))
}

/// A nonce, for a load query or the name of a session. Fails only where the kernel has no `getrandom`.
pub fn fresh_nonce() -> io::Result<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce)?;
    Ok(nonce)
}

/// A new key. Fails only where the kernel has no `getrandom`.
pub fn fresh_key() -> io::Result<Key> {
    let mut secret = Zeroizing::new([0; SECRET_BYTES]);
    getrandom::fill(&mut *secret)?;
    Ok(Key::from_secret(*secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_differ_from_call_to_call() {
        assert_ne!(fresh_nonce().unwrap(), fresh_nonce().unwrap());
        assert_ne!(fresh_link_randomness().unwrap().nonce(), fresh_link_randomness().unwrap().nonce());
        assert_ne!(fresh_key().unwrap().id(), fresh_key().unwrap().id());
    }
}
