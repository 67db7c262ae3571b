//! The stages of a server's end of a link: the handshake, then an authenticated peer, or a failure.

use alloc::boxed::Box;

use spillway_auth::{KeyRing, LinkRandomness};
use spillway_transport::Time;
use spillway_wire::preamble::{KeyId, Role};

use crate::error::LinkError;
use crate::handshake::{AcceptorHandshake, AcceptorProgress};
use crate::limits::Limits;
use crate::link_end::LinkEnd;
use crate::records::Encryption;

/// The peer of an established link.
#[derive(Clone, Copy, Debug)]
pub(super) struct AuthenticatedPeer {
    pub(super) role: Role,
    /// The link's version.
    pub(super) version: u8,
}

#[derive(Debug)]
pub(super) enum Stage {
    Handshake { handshake: Box<AcceptorHandshake>, deadline: Time },
    Established(AuthenticatedPeer),
    Failed,
}

impl Stage {
    /// The stage of a link that was just accepted.
    pub(super) fn new(encryption: Encryption, limits: &Limits, now: Time, fresh: LinkRandomness) -> Stage {
        let handshake =
            AcceptorHandshake::new(encryption, fresh, limits.window_bytes, limits.connections_max);
        Stage::Handshake { handshake: Box::new(handshake), deadline: now + limits.handshake_timeout }
    }

    /// Takes one message of the handshake off the front of `input`, and sends the answer through `link_end`. `Some`:
    /// the peer has authenticated now. Call again while the handshake lasts and `input` is not empty.
    pub(super) fn advance(
        &mut self,
        ring: &KeyRing,
        input: &mut &[u8],
        link_end: &mut LinkEnd,
    ) -> Result<Option<(Role, KeyId)>, LinkError> {
        let Stage::Handshake { handshake, .. } = self else { return Ok(None) };
        match handshake.advance(ring, input) {
            Ok(AcceptorProgress::NeedsInput) => Ok(None),
            Ok(AcceptorProgress::Send(welcome, offer)) => {
                link_end.batching.preamble(&welcome);
                if let Some(offer) = offer {
                    link_end.batching.preamble(&offer);
                }
                Ok(None)
            }
            Ok(AcceptorProgress::Done { role, key, version, channel }) => {
                *self = Stage::Established(AuthenticatedPeer { role, version });
                if let Some(channel) = channel {
                    link_end.receiving.enable_encryption(channel);
                }
                Ok(Some((role, key)))
            }
            Err(rejected) => {
                if let Some(welcome) = rejected.reply {
                    link_end.batching.preamble(&welcome);
                }
                Err(rejected.error)
            }
        }
    }

    /// The peer's role, once it has authenticated.
    pub(super) fn role(&self) -> Option<Role> {
        match self {
            Stage::Established(peer) => Some(peer.role),
            _ => None,
        }
    }

    /// Whether the peer has named an accepted key. Its proof may still be missing.
    pub(super) fn has_named_key(&self) -> bool {
        match self {
            Stage::Handshake { handshake, .. } => handshake.has_named_key(),
            Stage::Established(_) => true,
            Stage::Failed => false,
        }
    }

    /// Bytes of the handshake that the peer must send before this end can answer; 0 after the handshake.
    pub(super) fn bytes_needed(&self) -> usize {
        match self {
            Stage::Handshake { handshake, .. } => handshake.bytes_needed(),
            _ => 0,
        }
    }
}
