//! Key identifiers, proofs and derived keys do not change. The vectors were computed with another HMAC implementation.

#[path = "../../wire/tests/vectors/mod.rs"]
mod vectors;

use spillway_auth::{
    Key, KeyRing, Prover, prove, prove_load, prove_query, verify, verify_load, verify_query,
};
use spillway_wire::preamble::Role;
use vectors::{Vectors, hex};

#[test]
fn keys_and_proofs_match_the_vectors() {
    let vectors = Vectors::read(include_str!("../../wire/golden/keys.hex"));
    let key = Key::from_secret(vectors.array("secret"));
    assert_eq!(key.id().0, vectors.array("its name"));
    let proven = vectors.bytes("proven");
    for (prover, name) in [(Prover::Opener, "opener's proof"), (Prover::Server, "server's proof")] {
        let proof = vectors.array(name);
        assert_eq!(prove(&key, prover, proven), proof, "{name} should equal its vector");
        assert!(verify(&key, prover, proven, &proof), "{name} should be valid");
    }
    let derived = key.derive(b"spillway session 1\0", vectors.bytes("session's id"));
    assert_eq!(derived.id().0, vectors.array("name of the session's key"));
    let expected = Key::from_secret(vectors.array("session's key"));
    assert_eq!(prove(&derived, Prover::Opener, b""), prove(&expected, Prover::Opener, b""));
    assert_eq!(vectors.iter().count(), 8, "each vector should be tested here");
}

#[test]
fn text_of_a_key_file_matches_the_vector() {
    let vectors = Vectors::read(include_str!("../../wire/golden/keys.hex"));
    let text = format!("spillway-key-1 {}\n", hex(vectors.bytes("secret")));
    let key = Key::parse(&text).unwrap();
    assert_eq!(key.id().0, vectors.array("its name"));
    assert_eq!(*key.to_text(), text);
}

#[test]
fn load_queries_and_replies_match_the_vectors() {
    let vectors = Vectors::read(include_str!("../../wire/golden/load.hex"));
    let key = Key::from_secret(std::array::from_fn(|at| 0x20 + at as u8));
    let nonce = std::array::from_fn(|at| 0x10 + at as u8);
    let mut ring = KeyRing::new();
    ring.accept(Role::Client, key.clone());
    for (name, bytes) in vectors.iter() {
        if name.starts_with("ask") {
            let (query, _) = verify_query(&ring, bytes).unwrap_or_else(|why| panic!("{name}: {why}"));
            assert_eq!(prove_query(&key, query).as_slice(), bytes, "{name} should equal its vector");
        } else {
            let load = verify_load(&key, &nonce, bytes).unwrap_or_else(|why| panic!("{name}: {why}"));
            assert_eq!(prove_load(&key, &load).as_slice(), bytes, "{name} should equal its vector");
        }
    }
}
