//! The handshake of a link, for both ends. See `spillway_wire::preamble` for the messages.

use alloc::vec::Vec;

use core::ops::RangeInclusive;

use spillway_auth::{Channel, Exchange, Key, KeyRing, LinkRandomness, Prover, prove, verify};
use spillway_wire::preamble::{
    ENCRYPTED_SINCE, EXCHANGE_BYTES, HELLO_BYTES, Hello, KeyId, MAGIC, PROOF_BYTES, PreambleError, Role,
    VERSIONS, Verdict, WELCOME_BYTES, Welcome, transcript,
};

use crate::error::LinkError;
use crate::limits::connections_max_of;
use crate::records::Encryption;

/// The key exchange is bound to the complete hello and welcome.
const PROLOGUE_BYTES: usize = HELLO_BYTES + WELCOME_BYTES;

impl Encryption {
    /// The link versions that this end offers or accepts. With `Required` the caller must also check the key:
    /// a link with the loopback-only key is not encrypted in any version.
    fn versions(self) -> RangeInclusive<u8> {
        match self {
            Encryption::Preferred => VERSIONS,
            Encryption::Required => ENCRYPTED_SINCE..=*VERSIONS.end(),
            Encryption::Off => *VERSIONS.start()..=ENCRYPTED_SINCE - 1,
        }
    }
}

fn is_encrypted(version: u8, key: &Key) -> bool {
    version >= ENCRYPTED_SINCE && !key.is_loopback_only()
}

fn prologue(hello: &Hello, welcome: &[u8; WELCOME_BYTES]) -> [u8; PROLOGUE_BYTES] {
    let mut out = [0; PROLOGUE_BYTES];
    out[..HELLO_BYTES].copy_from_slice(&hello.emit());
    out[HELLO_BYTES..].copy_from_slice(welcome);
    out
}

/// Gathers a message of fixed length from a stream that arrives in pieces.
#[derive(Debug, Default)]
struct Gather {
    held: Vec<u8>,
}

impl Gather {
    fn take<const N: usize>(&mut self, input: &mut &[u8]) -> Option<[u8; N]> {
        let (bytes, rest) = input.split_at((N - self.held.len()).min(input.len()));
        self.held.extend_from_slice(bytes);
        *input = rest;
        let message = self.held.as_slice().try_into().ok()?;
        self.held.clear();
        Some(message)
    }

    /// Rejects a peer of another protocol by its first bytes, because such a peer may never send a whole message.
    fn check_magic(&self) -> Result<(), PreambleError> {
        let length = self.held.len().min(MAGIC.len());
        if self.held[..length] == MAGIC[..length] { Ok(()) } else { Err(PreambleError::Magic) }
    }
}

/// The welcome's values that apply to the whole link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkTerms {
    pub(crate) version: u8,
    pub(crate) credit: u32,
    pub(crate) connections_max: u32,
}

/// The opener's side: sends hello; receives welcome and key exchange; sends proof and key exchange.
#[derive(Debug)]
pub(crate) struct OpenerHandshake {
    hello: Hello,
    key: Key,
    fresh: LinkRandomness,
    is_encryption_required: bool,
    gather: Gather,
    /// The server's welcome, while the server's part of the key exchange is missing.
    checked_welcome: Option<CheckedWelcome>,
}

#[derive(Debug)]
struct CheckedWelcome {
    terms: LinkTerms,
    proof: [u8; PROOF_BYTES],
    prologue: [u8; PROLOGUE_BYTES],
}

#[derive(Debug)]
pub(crate) struct OpenerOutcome {
    pub(crate) terms: LinkTerms,
    pub(crate) proof: [u8; PROOF_BYTES],
    /// On an encrypted link: our part of the key exchange, to be sent, and the channel.
    pub(crate) encrypted: Option<([u8; EXCHANGE_BYTES], Channel)>,
}

impl OpenerHandshake {
    /// Also returns the hello to send.
    pub(crate) fn new(
        role: Role,
        key: Key,
        encryption: Encryption,
        fresh: LinkRandomness,
    ) -> (OpenerHandshake, [u8; HELLO_BYTES]) {
        let versions = encryption.versions();
        let hello = Hello {
            version_min: *versions.start(),
            version_max: *versions.end(),
            role,
            key: key.id(),
            nonce: fresh.nonce(),
        };
        let is_encryption_required = encryption == Encryption::Required;
        let handshake = OpenerHandshake {
            hello,
            key,
            fresh,
            is_encryption_required,
            gather: Gather::default(),
            checked_welcome: None,
        };
        (handshake, hello.emit())
    }

    /// Consumes input. `None`: more input is needed.
    pub(crate) fn advance(&mut self, input: &mut &[u8]) -> Result<Option<OpenerOutcome>, LinkError> {
        if self.checked_welcome.is_none() {
            let Some(bytes) = self.gather.take::<WELCOME_BYTES>(input) else {
                self.gather.check_magic()?;
                return Ok(None);
            };
            let checked_welcome = self.check_welcome(&bytes)?;
            if !is_encrypted(checked_welcome.terms.version, &self.key) {
                if self.is_encryption_required {
                    return Err(LinkError::Unencrypted);
                }
                let CheckedWelcome { terms, proof, .. } = checked_welcome;
                return Ok(Some(OpenerOutcome { terms, proof, encrypted: None }));
            }
            self.checked_welcome = Some(checked_welcome);
        }
        let Some(offer) = self.gather.take::<EXCHANGE_BYTES>(input) else { return Ok(None) };
        let Some(CheckedWelcome { terms, proof, prologue }) = self.checked_welcome.take() else {
            return Ok(None);
        };
        let (channel, answer) = Exchange::answer(&self.key, &prologue, &self.fresh, &offer)?;
        Ok(Some(OpenerOutcome { terms, proof, encrypted: Some((answer, channel)) }))
    }

    fn check_welcome(&self, bytes: &[u8; WELCOME_BYTES]) -> Result<CheckedWelcome, LinkError> {
        let welcome = Welcome::parse(bytes)?;
        if welcome.verdict == Verdict::Version && self.is_encryption_required {
            return Err(LinkError::Unencrypted);
        }
        if welcome.verdict != Verdict::Proceed {
            return Err(LinkError::RefusedByServer(welcome.verdict));
        }
        if !(self.hello.version_min..=self.hello.version_max).contains(&welcome.version)
            || welcome.connections_max == 0
            || welcome.connections_max == u32::MAX
        {
            return Err(LinkError::Welcome);
        }
        let transcript = transcript(&self.hello, &welcome);
        if !verify(&self.key, Prover::Server, &transcript, &welcome.proof) {
            return Err(LinkError::WrongProof);
        }
        let Welcome { version, credit, connections_max, .. } = welcome;
        Ok(CheckedWelcome {
            terms: LinkTerms { version, credit, connections_max },
            proof: prove(&self.key, Prover::Opener, &transcript),
            prologue: prologue(&self.hello, bytes),
        })
    }
}

/// The accepting side, in a server or a helper: receives hello; sends welcome and key exchange; receives proof and key
/// exchange.
#[derive(Debug)]
pub(crate) struct AcceptorHandshake {
    gather: Gather,
    fresh: LinkRandomness,
    encryption: Encryption,
    credit: u32,
    connections_max: u32,
    awaited_proof: Option<AwaitedProof>,
}

#[derive(Debug)]
struct AwaitedProof {
    role: Role,
    key: Key,
    version: u8,
    transcript: [u8; HELLO_BYTES + WELCOME_BYTES],
    /// `Some`: the link will be encrypted.
    exchange: Option<Exchange>,
}

#[derive(Debug)]
pub(crate) enum AcceptorProgress {
    NeedsInput,
    Send([u8; WELCOME_BYTES], Option<[u8; EXCHANGE_BYTES]>),
    Done { role: Role, key: KeyId, version: u8, channel: Option<Channel> },
}

/// The accepting side rejects the peer. `reply`, if any, is to be sent to the peer.
#[derive(Debug)]
pub(crate) struct Rejected {
    pub(crate) reply: Option<[u8; WELCOME_BYTES]>,
    pub(crate) error: LinkError,
}

impl Rejected {
    fn without_reply(error: impl Into<LinkError>) -> Rejected {
        Rejected { reply: None, error: error.into() }
    }

    fn with_verdict(verdict: Verdict, error: LinkError) -> Rejected {
        Rejected { reply: Some(Welcome::refusal(verdict).emit()), error }
    }
}

impl AcceptorHandshake {
    pub(crate) fn new(
        encryption: Encryption,
        fresh: LinkRandomness,
        credit: u32,
        connections_max: u32,
    ) -> AcceptorHandshake {
        AcceptorHandshake {
            gather: Gather::default(),
            fresh,
            encryption,
            credit,
            connections_max,
            awaited_proof: None,
        }
    }

    /// Bytes that the opener must still send before this side can answer.
    pub(crate) fn bytes_needed(&self) -> usize {
        let message = match &self.awaited_proof {
            None => HELLO_BYTES,
            Some(AwaitedProof { exchange: None, .. }) => PROOF_BYTES,
            Some(AwaitedProof { exchange: Some(_), .. }) => PROOF_BYTES + EXCHANGE_BYTES,
        };
        message - self.gather.held.len()
    }

    pub(crate) fn has_named_key(&self) -> bool {
        self.awaited_proof.is_some()
    }

    pub(crate) fn advance(
        &mut self,
        ring: &KeyRing,
        input: &mut &[u8],
    ) -> Result<AcceptorProgress, Rejected> {
        if let Some(awaited_proof) = &mut self.awaited_proof {
            let (proof, answer) = if awaited_proof.exchange.is_some() {
                match self.gather.take::<{ PROOF_BYTES + EXCHANGE_BYTES }>(input) {
                    Some(proof_and_exchange) => split_proof_and_exchange(&proof_and_exchange),
                    None => return Ok(AcceptorProgress::NeedsInput),
                }
            } else {
                match self.gather.take::<PROOF_BYTES>(input) {
                    Some(proof) => (proof, [0; EXCHANGE_BYTES]),
                    None => return Ok(AcceptorProgress::NeedsInput),
                }
            };
            if !verify(&awaited_proof.key, Prover::Opener, &awaited_proof.transcript, &proof) {
                return Err(Rejected::with_verdict(Verdict::Key, LinkError::WrongProof));
            }
            let channel = awaited_proof.exchange.take().map(|exchange| exchange.finish(&answer)).transpose();
            let channel = channel.map_err(Rejected::without_reply)?;
            let AwaitedProof { role, version, .. } = *awaited_proof;
            return Ok(AcceptorProgress::Done { role, key: awaited_proof.key.id(), version, channel });
        }
        let Some(bytes) = self.gather.take::<HELLO_BYTES>(input) else {
            self.gather.check_magic().map_err(Rejected::without_reply)?;
            return Ok(AcceptorProgress::NeedsInput);
        };
        let hello = Hello::parse(&bytes).map_err(Rejected::without_reply)?;
        let Some(version) = hello.common_version_of(&self.encryption.versions()) else {
            let is_too_old_to_encrypt =
                hello.common_version().is_some() && self.encryption == Encryption::Required;
            let error = LinkError::Version { min: hello.version_min, max: hello.version_max };
            let error = if is_too_old_to_encrypt { LinkError::Unencrypted } else { error };
            return Err(Rejected::with_verdict(Verdict::Version, error));
        };
        let Some(key) = ring.find(hello.role, hello.key) else {
            let error = LinkError::UnknownKey { role: hello.role, key: hello.key };
            return Err(Rejected::with_verdict(Verdict::Key, error));
        };
        let will_encrypt = is_encrypted(version, key);
        if !will_encrypt && self.encryption == Encryption::Required {
            return Err(Rejected::with_verdict(Verdict::Key, LinkError::Unencrypted));
        }
        let mut welcome = Welcome {
            version,
            verdict: Verdict::Proceed,
            nonce: self.fresh.nonce(),
            proof: [0; PROOF_BYTES],
            credit: self.credit,
            connections_max: connections_max_of(hello.role, self.connections_max),
        };
        let transcript = transcript(&hello, &welcome);
        welcome.proof = prove(key, Prover::Server, &transcript);
        let welcome_bytes = welcome.emit();
        let (exchange, offer) = if will_encrypt {
            let offered = Exchange::offer(key, &prologue(&hello, &welcome_bytes), &self.fresh);
            let (exchange, offer) = offered.map_err(Rejected::without_reply)?;
            (Some(exchange), Some(offer))
        } else {
            (None, None)
        };
        self.awaited_proof =
            Some(AwaitedProof { role: hello.role, key: key.clone(), version, transcript, exchange });
        Ok(AcceptorProgress::Send(welcome_bytes, offer))
    }
}

fn split_proof_and_exchange(
    both: &[u8; PROOF_BYTES + EXCHANGE_BYTES],
) -> ([u8; PROOF_BYTES], [u8; EXCHANGE_BYTES]) {
    let (mut proof, mut answer) = ([0; PROOF_BYTES], [0; EXCHANGE_BYTES]);
    proof.copy_from_slice(&both[..PROOF_BYTES]);
    answer.copy_from_slice(&both[PROOF_BYTES..]);
    (proof, answer)
}
