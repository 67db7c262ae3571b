//! Proofs of a key's possession, for links and load queries.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use spillway_wire::preamble::PROOF_BYTES;

use crate::key::Key;
use crate::keyed::keyed_hash;

/// The role of the end that proves. Each role has its own label, so one end's proof is not valid as the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prover {
    /// The end that opened the link.
    Opener,
    /// The server's end of a link.
    Server,
    /// A client that sends a load query.
    Asker,
    /// A helper that sends a load reply.
    Answerer,
}

fn mac(key: &Key, prover: Prover, transcript: &[u8]) -> Hmac<Sha256> {
    let label: &[u8] = match prover {
        Prover::Opener => b"spillway link 1 opener\0",
        Prover::Server => b"spillway link 1 server\0",
        Prover::Asker => b"spillway load 1 ask\0",
        Prover::Answerer => b"spillway load 1 answer\0",
    };
    keyed_hash(key.secret(), label, transcript)
}

/// The proof that `prover` has `key` and saw `transcript`.
pub fn prove(key: &Key, prover: Prover, transcript: &[u8]) -> [u8; PROOF_BYTES] {
    mac(key, prover, transcript).finalize().into_bytes().into()
}

/// Whether a proof is right. Takes constant time.
pub fn verify(key: &Key, prover: Prover, transcript: &[u8], proof: &[u8; PROOF_BYTES]) -> bool {
    mac(key, prover, transcript).verify_slice(proof).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_key_prover_and_transcript_verify() {
        let key = Key::from_secret([1; 32]);
        let proof = prove(&key, Prover::Opener, b"hello");
        assert!(verify(&key, Prover::Opener, b"hello", &proof));
        assert!(!verify(&key, Prover::Server, b"hello", &proof));
        assert!(!verify(&key, Prover::Opener, b"hellO", &proof));
        assert!(!verify(&Key::from_secret([2; 32]), Prover::Opener, b"hello", &proof));
        for bit in 0..PROOF_BYTES * 8 {
            let mut altered = proof;
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify(&key, Prover::Opener, b"hello", &altered));
        }
    }

    /// RFC 2104 §2: padding a key that is shorter than a block with zeros does not change the key.
    #[test]
    fn padding_a_key_is_the_same_key() {
        let mut plain = <Hmac<Sha256> as Mac>::new_from_slice(&[5; 32]).unwrap();
        plain.update(b"spillway link 1 opener\0data");
        let expected: [u8; 32] = plain.finalize().into_bytes().into();
        assert_eq!(prove(&Key::from_secret([5; 32]), Prover::Opener, b"data"), expected);
    }
}
