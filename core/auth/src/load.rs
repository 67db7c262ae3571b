//! Load queries and load replies, authenticated with a client key (PostMan §5.2).

use core::fmt;

use spillway_wire::load::{ASK_BYTES, Ask, LOAD_BYTES, Load, LoadError, exactly};
use spillway_wire::preamble::{KeyId, NONCE_BYTES, PROOF_BYTES, Role};

use crate::key::Key;
use crate::proof::{Prover, prove, verify};
use crate::ring::KeyRing;

/// Why a load query or a load reply was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadRejection {
    /// The datagram is not a load query or a load reply.
    Malformed(LoadError),
    /// The query names a key that is not accepted of clients.
    UnknownKey(KeyId),
    /// The sender does not have the key, or the datagram was altered.
    Proof,
    /// The reply has the nonce of another query: an earlier one, or one to another helper.
    Stale,
}

impl fmt::Display for LoadRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadRejection::Malformed(error) => error.fmt(f),
            LoadRejection::UnknownKey(key) => write!(f, "key {key} is not accepted of clients"),
            LoadRejection::Proof => {
                f.write_str("wrong proof: the sender has another key, or bytes were altered")
            }
            LoadRejection::Stale => f.write_str("load reply to another query"),
        }
    }
}

impl core::error::Error for LoadRejection {}

impl From<LoadError> for LoadRejection {
    fn from(error: LoadError) -> LoadRejection {
        LoadRejection::Malformed(error)
    }
}

/// Emits a load query with its proof. The query's key identifier is replaced by that of `key`.
pub fn prove_ask(key: &Key, ask: Ask) -> [u8; ASK_BYTES] {
    let ask = Ask { key: key.id(), ..ask };
    let proof = prove(key, Prover::Asker, Ask::proven(&ask.emit(&[0; PROOF_BYTES])));
    ask.emit(&proof)
}

/// Parses and verifies a load query. Returns the query and the client key with which to prove the reply.
///
/// # Errors
/// Send no reply, so that a sender without a key learns nothing about the load.
pub fn verify_ask<'a>(ring: &'a KeyRing, bytes: &[u8]) -> Result<(Ask, &'a Key), LoadRejection> {
    let bytes = exactly(bytes)?;
    let (ask, proof) = Ask::parse(bytes)?;
    let key = ring.find(Role::Client, ask.key).ok_or(LoadRejection::UnknownKey(ask.key))?;
    let is_proven = verify(key, Prover::Asker, Ask::proven(bytes), &proof);
    if is_proven { Ok((ask, key)) } else { Err(LoadRejection::Proof) }
}

/// Emits a load reply with its proof. `load.nonce` must be the nonce of the query.
pub fn prove_load(key: &Key, load: &Load) -> [u8; LOAD_BYTES] {
    let proof = prove(key, Prover::Answerer, Load::proven(&load.emit(&[0; PROOF_BYTES])));
    load.emit(&proof)
}

/// Parses and verifies the load reply to the query with this nonce and key.
///
/// # Errors
/// Ignore the datagram and keep waiting: it may be forged, and the genuine reply may still arrive.
pub fn verify_load(key: &Key, nonce: &[u8; NONCE_BYTES], bytes: &[u8]) -> Result<Load, LoadRejection> {
    let bytes = exactly(bytes)?;
    let (load, proof) = Load::parse(bytes)?;
    if load.nonce != *nonce {
        return Err(LoadRejection::Stale);
    }
    let is_proven = verify(key, Prover::Answerer, Load::proven(bytes), &proof);
    if is_proven { Ok(load) } else { Err(LoadRejection::Proof) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(nonce: u8) -> Ask {
        Ask { asked: 2, key: KeyId([0; 8]), nonce: [nonce; 16], server: None }
    }

    #[test]
    fn only_queries_with_a_client_key_are_accepted() {
        let (key, other) = (Key::from_secret([1; 32]), Key::from_secret([2; 32]));
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, key.clone());
        ring.accept(Role::Helper, other.clone());
        let question = prove_ask(&key, ask(7));
        let (read, with) = verify_ask(&ring, &question).unwrap();
        assert_eq!((read.nonce, with.id()), ([7; 16], key.id()));
        let from_helper = prove_ask(&other, ask(7));
        assert_eq!(verify_ask(&ring, &from_helper).unwrap_err(), LoadRejection::UnknownKey(other.id()));
        for bit in 0..question.len() * 8 {
            let mut altered = question;
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(verify_ask(&ring, &altered).is_err(), "bit {bit}");
        }
        assert_eq!(
            verify_ask(&ring, &question[1..]).unwrap_err(),
            LoadRejection::Malformed(LoadError::Length(ASK_BYTES - 1))
        );
    }

    #[test]
    fn a_reply_is_accepted_for_its_own_query_only() {
        let key = Key::from_secret([1; 32]);
        let load = Load { nonce: [7; 16], cpu: 500, ..Load::default() };
        let answer = prove_load(&key, &load);
        assert_eq!(verify_load(&key, &[7; 16], &answer), Ok(load));
        assert_eq!(verify_load(&key, &[8; 16], &answer), Err(LoadRejection::Stale), "replayed");
        let forged = prove_load(&Key::from_secret([2; 32]), &load);
        assert_eq!(verify_load(&key, &[7; 16], &forged), Err(LoadRejection::Proof));
        for bit in 0..answer.len() * 8 {
            let mut altered = answer;
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(verify_load(&key, &[7; 16], &altered).is_err(), "bit {bit}");
        }
        // A query that is reflected to its sender is not accepted as a reply.
        let question = prove_ask(&key, ask(7));
        assert!(verify_load(&key, &[7; 16], &question[..LOAD_BYTES]).is_err());
    }
}
