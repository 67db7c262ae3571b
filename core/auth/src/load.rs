//! Questions of load and their answers, proven with a client key (PostMan §5.2).

use core::fmt;

use spillway_wire::load::{ASK_BYTES, Ask, LOAD_BYTES, Load, LoadError, exactly};
use spillway_wire::preamble::{KeyId, NONCE_BYTES, PROOF_BYTES, Role};

use crate::key::Key;
use crate::proof::{Prover, prove, verify};
use crate::ring::KeyRing;

/// Why a question is not answered, or an answer not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadRefusal {
    /// It is none.
    Malformed(LoadError),
    /// No client has a key of this name.
    UnknownKey(KeyId),
    /// Whoever sent it does not know the key, or it was altered.
    Proof,
    /// It answers another question: an old one, or one to another helper.
    Stale,
}

impl fmt::Display for LoadRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadRefusal::Malformed(error) => error.fmt(f),
            LoadRefusal::UnknownKey(key) => write!(f, "no client has a key named {key}"),
            LoadRefusal::Proof => f.write_str("its proof is wrong"),
            LoadRefusal::Stale => f.write_str("it answers another question"),
        }
    }
}

impl core::error::Error for LoadRefusal {}

impl From<LoadError> for LoadRefusal {
    fn from(error: LoadError) -> LoadRefusal {
        LoadRefusal::Malformed(error)
    }
}

/// A question as it goes out. Its key's name is set here.
pub fn prove_ask(key: &Key, ask: Ask) -> [u8; ASK_BYTES] {
    let ask = Ask { key: key.id(), ..ask };
    let proof = prove(key, Prover::Asker, Ask::proven(&ask.emit(&[0; PROOF_BYTES])));
    ask.emit(&proof)
}

/// A question as it came in, and the key to answer with, if a client of this ring asks.
///
/// # Errors
/// It gets no answer: whoever cannot ask learns nothing.
pub fn verify_ask<'a>(ring: &'a KeyRing, bytes: &[u8]) -> Result<(Ask, &'a Key), LoadRefusal> {
    let bytes = exactly(bytes)?;
    let (ask, proof) = Ask::parse(bytes)?;
    let key = ring.find(Role::Client, ask.key).ok_or(LoadRefusal::UnknownKey(ask.key))?;
    let is_proven = verify(key, Prover::Asker, Ask::proven(bytes), &proof);
    if is_proven { Ok((ask, key)) } else { Err(LoadRefusal::Proof) }
}

/// An answer as it goes out. Its nonce is that of the question.
pub fn prove_load(key: &Key, load: &Load) -> [u8; LOAD_BYTES] {
    let proof = prove(key, Prover::Answerer, Load::proven(&load.emit(&[0; PROOF_BYTES])));
    load.emit(&proof)
}

/// An answer as it came in, if it answers the question with this nonce and was made with the key of that question.
///
/// # Errors
/// It is to be passed over: the right one may still come.
pub fn verify_load(key: &Key, nonce: &[u8; NONCE_BYTES], bytes: &[u8]) -> Result<Load, LoadRefusal> {
    let bytes = exactly(bytes)?;
    let (load, proof) = Load::parse(bytes)?;
    if load.nonce != *nonce {
        return Err(LoadRefusal::Stale);
    }
    let is_proven = verify(key, Prover::Answerer, Load::proven(bytes), &proof);
    if is_proven { Ok(load) } else { Err(LoadRefusal::Proof) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(nonce: u8) -> Ask {
        Ask { asked: 2, key: KeyId([0; 8]), nonce: [nonce; 16], server: None }
    }

    #[test]
    fn only_a_client_with_the_key_is_answered() {
        let (key, other) = (Key::from_secret([1; 32]), Key::from_secret([2; 32]));
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, key.clone());
        ring.accept(Role::Helper, other.clone());
        let question = prove_ask(&key, ask(7));
        let (read, with) = verify_ask(&ring, &question).unwrap();
        assert_eq!((read.nonce, with.id()), ([7; 16], key.id()));
        let of_a_helper = prove_ask(&other, ask(7));
        assert_eq!(verify_ask(&ring, &of_a_helper).unwrap_err(), LoadRefusal::UnknownKey(other.id()));
        for bit in 0..question.len() * 8 {
            let mut altered = question;
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(verify_ask(&ring, &altered).is_err(), "bit {bit}");
        }
        assert_eq!(
            verify_ask(&ring, &question[1..]).unwrap_err(),
            LoadRefusal::Malformed(LoadError::Length(ASK_BYTES - 1))
        );
    }

    #[test]
    fn an_answer_is_of_its_question_only() {
        let key = Key::from_secret([1; 32]);
        let load = Load { nonce: [7; 16], cpu: 500, ..Load::default() };
        let answer = prove_load(&key, &load);
        assert_eq!(verify_load(&key, &[7; 16], &answer), Ok(load));
        assert_eq!(verify_load(&key, &[8; 16], &answer), Err(LoadRefusal::Stale), "replayed");
        let forged = prove_load(&Key::from_secret([2; 32]), &load);
        assert_eq!(verify_load(&key, &[7; 16], &forged), Err(LoadRefusal::Proof));
        for bit in 0..answer.len() * 8 {
            let mut altered = answer;
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(verify_load(&key, &[7; 16], &altered).is_err(), "bit {bit}");
        }
        // A question sent back is no answer, whoever made it.
        let question = prove_ask(&key, ask(7));
        assert!(verify_load(&key, &[7; 16], &question[..LOAD_BYTES]).is_err());
    }
}
