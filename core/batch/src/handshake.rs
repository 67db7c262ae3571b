//! How a link begins, for both ends. See `spillway_wire::preamble` for the messages.

use alloc::vec::Vec;

use spillway_auth::{Key, KeyRing, Prover, prove, verify};
use spillway_wire::preamble::{
    HELLO_BYTES, Hello, KeyId, MAGIC, NONCE_BYTES, PROOF_BYTES, PreambleError, Role, VERSIONS, Verdict,
    WELCOME_BYTES, Welcome, transcript,
};

use crate::ends::connections_max_of;
use crate::error::LinkError;

/// Gathers a message of fixed length from a stream cut anywhere.
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

    /// A peer that is no link is told apart by its first bytes: it may never send as many as a message has.
    fn check_magic(&self) -> Result<(), PreambleError> {
        let length = self.held.len().min(MAGIC.len());
        if self.held[..length] == MAGIC[..length] { Ok(()) } else { Err(PreambleError::Magic) }
    }
}

/// What the server's welcome settled for a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) version: u8,
    pub(crate) credit: u32,
    pub(crate) connections_max: u32,
}

/// The opener's side: hello out, welcome in, proof out.
#[derive(Debug)]
pub(crate) struct Opening {
    hello: Hello,
    key: Key,
    gather: Gather,
}

impl Opening {
    /// Also returns the first bytes to send.
    pub(crate) fn new(role: Role, key: Key, nonce: [u8; NONCE_BYTES]) -> (Opening, [u8; HELLO_BYTES]) {
        let hello = Hello {
            version_min: *VERSIONS.start(),
            version_max: *VERSIONS.end(),
            role,
            key: key.id(),
            nonce,
        };
        (Opening { hello, key, gather: Gather::default() }, hello.emit())
    }

    /// `None` while more input is needed; then our proof, to be sent.
    pub(crate) fn advance(
        &mut self,
        input: &mut &[u8],
    ) -> Result<Option<(Settled, [u8; PROOF_BYTES])>, LinkError> {
        let Some(bytes) = self.gather.take::<WELCOME_BYTES>(input) else {
            self.gather.check_magic()?;
            return Ok(None);
        };
        let welcome = Welcome::parse(&bytes)?;
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
        let settled = Settled { version, credit, connections_max };
        Ok(Some((settled, prove(&self.key, Prover::Opener, &transcript))))
    }
}

/// The server's side: hello in, welcome out, proof in.
#[derive(Debug)]
pub(crate) struct Accepting {
    gather: Gather,
    nonce: [u8; NONCE_BYTES],
    credit: u32,
    connections_max: u32,
    proving: Option<Proving>,
}

#[derive(Debug)]
struct Proving {
    role: Role,
    key: Key,
    version: u8,
    transcript: [u8; HELLO_BYTES + WELCOME_BYTES],
}

/// One step of the server's side.
#[derive(Debug)]
pub(crate) enum Accepted {
    NeedsInput,
    Say([u8; WELCOME_BYTES]),
    Done { role: Role, key: KeyId, version: u8 },
}

/// The server's side cannot go on; says what to tell the peer, if anything.
#[derive(Debug)]
pub(crate) struct Rejected {
    pub(crate) say: Option<[u8; WELCOME_BYTES]>,
    pub(crate) error: LinkError,
}

impl Rejected {
    fn silently(error: impl Into<LinkError>) -> Rejected {
        Rejected { say: None, error: error.into() }
    }

    fn telling(verdict: Verdict, error: LinkError) -> Rejected {
        Rejected { say: Some(Welcome::refusal(verdict).emit()), error }
    }
}

impl Accepting {
    pub(crate) fn new(nonce: [u8; NONCE_BYTES], credit: u32, connections_max: u32) -> Accepting {
        Accepting { gather: Gather::default(), nonce, credit, connections_max, proving: None }
    }

    /// Whether the opener has named an accepted key, which it has yet to prove.
    pub(crate) fn has_named_key(&self) -> bool {
        self.proving.is_some()
    }

    pub(crate) fn advance(&mut self, ring: &KeyRing, input: &mut &[u8]) -> Result<Accepted, Rejected> {
        if let Some(proving) = &self.proving {
            let Some(proof) = self.gather.take::<PROOF_BYTES>(input) else { return Ok(Accepted::NeedsInput) };
            if !verify(&proving.key, Prover::Opener, &proving.transcript, &proof) {
                return Err(Rejected::telling(Verdict::Key, LinkError::WrongProof));
            }
            let Proving { role, version, .. } = *proving;
            return Ok(Accepted::Done { role, key: proving.key.id(), version });
        }
        let Some(bytes) = self.gather.take::<HELLO_BYTES>(input) else {
            self.gather.check_magic().map_err(Rejected::silently)?;
            return Ok(Accepted::NeedsInput);
        };
        let hello = Hello::parse(&bytes).map_err(Rejected::silently)?;
        let Some(version) = hello.common_version() else {
            let error = LinkError::Version { min: hello.version_min, max: hello.version_max };
            return Err(Rejected::telling(Verdict::Version, error));
        };
        let Some(key) = ring.find(hello.role, hello.key) else {
            let error = LinkError::UnknownKey { role: hello.role, key: hello.key };
            return Err(Rejected::telling(Verdict::Key, error));
        };
        let mut welcome = Welcome {
            version,
            verdict: Verdict::Proceed,
            nonce: self.nonce,
            proof: [0; PROOF_BYTES],
            credit: self.credit,
            connections_max: connections_max_of(hello.role, self.connections_max),
        };
        let transcript = transcript(&hello, &welcome);
        welcome.proof = prove(key, Prover::Server, &transcript);
        self.proving = Some(Proving { role: hello.role, key: key.clone(), version, transcript });
        Ok(Accepted::Say(welcome.emit()))
    }
}
