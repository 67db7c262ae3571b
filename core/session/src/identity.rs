//! Authentication of a session's carriers: both ends prove that they know the session's key.
//!
//! Each end derives the key from the client key and the session's id, so the key is never sent. A helper, which lacks
//! the client key, cannot open a session for a client; a client cannot take another client's session, because ids are
//! random.

use core::net::SocketAddr;

use spillway_auth::{Key, Prover, prove, verify};
use spillway_wire::Kind;
use spillway_wire::preamble::PROOF_BYTES;
use spillway_wire::session::{Opening, Position, Resumed, SessionId};

/// A session's id and key.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) id: SessionId,
    key: Key,
}

impl Identity {
    pub(crate) fn new(client_key: &Key, id: SessionId) -> Identity {
        Identity { id, key: client_key.derive(b"spillway session 1\0", &id.0) }
    }

    /// The client's opening message on a carrier. `kind`: *connect* or *reconnect*.
    pub(crate) fn opening(
        &self,
        kind: Kind,
        client_key: &Key,
        client: SocketAddr,
        (epoch, life): (u32, u64),
        position: Position,
    ) -> Opening {
        let (session, key) = (self.id, client_key.id());
        let opening = Opening { session, key, epoch, life, position, proof: [0; PROOF_BYTES] };
        let proof = prove(&self.key, Prover::Opener, &opening.bytes_under_proof(kind, client));
        Opening { proof, ..opening }
    }

    pub(crate) fn is_proven_by_opening(&self, opening: &Opening, kind: Kind, client: SocketAddr) -> bool {
        verify(&self.key, Prover::Opener, &opening.bytes_under_proof(kind, client), &opening.proof)
    }

    /// The server's answer to an opening message.
    pub(crate) fn resumed(&self, (epoch, life): (u32, u64), position: Position) -> Resumed {
        let resumed = Resumed { epoch, life, position, proof: [0; PROOF_BYTES] };
        let proof = prove(&self.key, Prover::Server, &resumed.bytes_under_proof(self.id));
        Resumed { proof, ..resumed }
    }

    pub(crate) fn is_proven_by_resumed(&self, resumed: &Resumed) -> bool {
        verify(&self.key, Prover::Server, &resumed.bytes_under_proof(self.id), &resumed.proof)
    }
}
