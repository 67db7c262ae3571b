//! Proofs of a key's possession, for links and load queries.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use spillway_wire::preamble::PROOF_BYTES;

use crate::key::Key;
use crate::keyed_hash::keyed_hash;

/// The role of the sender of a proof. Each role has its own label, so that a reflected proof is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prover {
    /// The end that opened the link.
    Opener,
    /// The server's end of a link.
    Server,
    /// A client that sends a load query.
    QuerySender,
    /// A helper that sends a load reply.
    ReplySender,
}

fn mac(key: &Key, prover: Prover, transcript: &[u8]) -> Hmac<Sha256> {
    let label: &[u8] = match prover {
        Prover::Opener => b"spillway link 1 opener\0",
        Prover::Server => b"spillway link 1 server\0",
        Prover::QuerySender => b"spillway load 1 ask\0",
        Prover::ReplySender => b"spillway load 1 answer\0",
    };
    keyed_hash(key.secret(), label, transcript)
}

/// Computes the proof that `prover` has `key`. The proof is valid for this `transcript` only.
pub fn prove(key: &Key, prover: Prover, transcript: &[u8]) -> [u8; PROOF_BYTES] {
    mac(key, prover, transcript).finalize().into_bytes().into()
}

/// Whether a proof is valid. Takes constant time.
pub fn verify(key: &Key, prover: Prover, transcript: &[u8], proof: &[u8; PROOF_BYTES]) -> bool {
    mac(key, prover, transcript).verify_slice(proof).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_is_valid_only_for_its_key_prover_and_transcript() {
        let key = Key::from_secret([1; 32]);
        let proof = prove(&key, Prover::Opener, b"hello");
        assert!(verify(&key, Prover::Opener, b"hello", &proof), "the proof should be valid");
        assert!(
            !verify(&key, Prover::Server, b"hello", &proof),
            "the proof should not be valid for another prover"
        );
        assert!(
            !verify(&key, Prover::Opener, b"hellO", &proof),
            "the proof should not be valid for other bytes"
        );
        assert!(
            !verify(&Key::from_secret([2; 32]), Prover::Opener, b"hello", &proof),
            "the proof should not be valid with another key"
        );
        for bit in 0..PROOF_BYTES * 8 {
            let mut altered = proof;
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !verify(&key, Prover::Opener, b"hello", &altered),
                "a proof with bit {bit} flipped should be invalid"
            );
        }
    }

    /// RFC 2104 §2: HMAC pads a short key with zeros, so `keyed_hash` may pad the key itself.
    #[test]
    fn proof_equals_that_of_the_unpadded_key() {
        let mut unpadded = <Hmac<Sha256> as Mac>::new_from_slice(&[5; 32]).unwrap();
        unpadded.update(b"spillway link 1 opener\0data");
        let expected: [u8; 32] = unpadded.finalize().into_bytes().into();
        assert_eq!(prove(&Key::from_secret([5; 32]), Prover::Opener, b"data"), expected);
    }
}
