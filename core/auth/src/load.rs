//! Load queries and load replies, authenticated with a client key (PostMan §5.2).

use core::fmt;

use spillway_wire::load::{LOAD_QUERY_BYTES, LOAD_REPLY_BYTES, LoadError, LoadQuery, LoadReport, exactly};
use spillway_wire::preamble::{KeyId, NONCE_BYTES, PROOF_BYTES, Role};

use crate::key::Key;
use crate::proof::{Prover, prove, verify};
use crate::ring::KeyRing;

/// Why a load query or a load reply was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadRejection {
    /// The datagram is not a load query or a load reply.
    Malformed(LoadError),
    /// The query names a key that is not accepted from clients.
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
            LoadRejection::UnknownKey(key) => write!(f, "key {key} is not accepted from clients"),
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
pub fn prove_query(key: &Key, query: LoadQuery) -> [u8; LOAD_QUERY_BYTES] {
    let query = LoadQuery { key: key.id(), ..query };
    let proof = prove(key, Prover::QuerySender, LoadQuery::bytes_under_proof(&query.emit(&[0; PROOF_BYTES])));
    query.emit(&proof)
}

/// Parses and verifies a load query. Returns the query and the client key with which to prove the reply.
///
/// # Errors
/// The query is not authentic. Send no reply, which would reveal the load to a sender without a key.
pub fn verify_query<'a>(ring: &'a KeyRing, bytes: &[u8]) -> Result<(LoadQuery, &'a Key), LoadRejection> {
    let bytes: &[u8; LOAD_QUERY_BYTES] = exactly(bytes)?;
    let (query, proof) = LoadQuery::parse(bytes)?;
    let key = ring.find(Role::Client, query.key).ok_or(LoadRejection::UnknownKey(query.key))?;
    let is_proven = verify(key, Prover::QuerySender, LoadQuery::bytes_under_proof(bytes), &proof);
    if is_proven { Ok((query, key)) } else { Err(LoadRejection::Proof) }
}

/// Emits a load reply with its proof. `load.nonce` must be the nonce of the query.
pub fn prove_load(key: &Key, load: &LoadReport) -> [u8; LOAD_REPLY_BYTES] {
    let proof = prove(key, Prover::ReplySender, LoadReport::bytes_under_proof(&load.emit(&[0; PROOF_BYTES])));
    load.emit(&proof)
}

/// Parses and verifies the load reply to the query with this nonce and key.
///
/// # Errors
/// The reply is not authentic. Ignore the datagram and keep waiting: the genuine reply may still arrive.
pub fn verify_load(key: &Key, nonce: &[u8; NONCE_BYTES], bytes: &[u8]) -> Result<LoadReport, LoadRejection> {
    let bytes: &[u8; LOAD_REPLY_BYTES] = exactly(bytes)?;
    let (load, proof) = LoadReport::parse(bytes)?;
    if load.nonce != *nonce {
        return Err(LoadRejection::Stale);
    }
    let is_proven = verify(key, Prover::ReplySender, LoadReport::bytes_under_proof(bytes), &proof);
    if is_proven { Ok(load) } else { Err(LoadRejection::Proof) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unproven_query(nonce: u8) -> LoadQuery {
        LoadQuery { helpers_asked: 2, key: KeyId([0; 8]), nonce: [nonce; 16], server: None }
    }

    #[test]
    fn only_queries_with_a_client_key_are_accepted() {
        let (key, other) = (Key::from_secret([1; 32]), Key::from_secret([2; 32]));
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, key.clone());
        ring.accept(Role::Helper, other.clone());
        let query = prove_query(&key, unproven_query(7));
        let (parsed, accepted_key) = verify_query(&ring, &query).unwrap();
        assert_eq!((parsed.nonce, accepted_key.id()), ([7; 16], key.id()));
        let from_helper = prove_query(&other, unproven_query(7));
        assert_eq!(verify_query(&ring, &from_helper).unwrap_err(), LoadRejection::UnknownKey(other.id()));
        for bit in 0..query.len() * 8 {
            let mut altered = query;
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(
                verify_query(&ring, &altered).is_err(),
                "a query with bit {bit} flipped should be rejected"
            );
        }
        assert_eq!(
            verify_query(&ring, &query[1..]).unwrap_err(),
            LoadRejection::Malformed(LoadError::Length(LOAD_QUERY_BYTES - 1))
        );
    }

    #[test]
    fn reply_is_accepted_for_its_own_query_only() {
        let key = Key::from_secret([1; 32]);
        let load = LoadReport { nonce: [7; 16], cpu: 500, ..LoadReport::default() };
        let reply = prove_load(&key, &load);
        assert_eq!(verify_load(&key, &[7; 16], &reply), Ok(load));
        assert_eq!(
            verify_load(&key, &[8; 16], &reply),
            Err(LoadRejection::Stale),
            "a replayed reply should be rejected"
        );
        let forged = prove_load(&Key::from_secret([2; 32]), &load);
        assert_eq!(verify_load(&key, &[7; 16], &forged), Err(LoadRejection::Proof));
        for bit in 0..reply.len() * 8 {
            let mut altered = reply;
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(
                verify_load(&key, &[7; 16], &altered).is_err(),
                "a reply with bit {bit} flipped should be rejected"
            );
        }
        // An attacker reflects a query to its sender as a reply, cut to the length of a reply, which is shorter: the
        // datagram's kind must reject it.
        let query = prove_query(&key, unproven_query(7));
        assert!(
            verify_load(&key, &[7; 16], &query[..LOAD_REPLY_BYTES]).is_err(),
            "a reflected query should not be accepted as a reply"
        );
    }
}
