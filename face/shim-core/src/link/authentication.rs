//! Progress of the authentication of a link's peer. Until its end, the link may be closed for a newer one.

use crate::handshakes::{self, Newcomer};

/// Progress of the peer's authentication.
pub(super) struct Authentication {
    /// Distinguishes this link from earlier links in the same slot.
    newcomer: Newcomer,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Silent,
    /// The peer has named an accepted key, and has yet to prove that it has the key.
    NamedKey,
    Established,
}

impl Authentication {
    pub(super) fn new(newcomer: Newcomer) -> Authentication {
        Authentication { newcomer, stage: Stage::Silent }
    }

    /// Whether this is the link with this serial number, and its peer has not authenticated yet.
    pub(super) fn is_newcomer(&self, serial: u64) -> bool {
        self.newcomer.1 == serial && !self.is_established()
    }

    pub(super) fn is_established(&self) -> bool {
        self.stage == Stage::Established
    }

    /// Whether the peer has named no accepted key yet.
    pub(super) fn is_silent(&self) -> bool {
        self.stage == Stage::Silent
    }

    /// The peer has named an accepted key.
    pub(super) fn note_named_key(&mut self) {
        debug_assert!(self.is_silent(), "a peer names its key once");
        self.stage = Stage::NamedKey;
        handshakes::named_key(self.newcomer);
    }

    /// The peer has proved that it has its key.
    pub(super) fn establish(&mut self) {
        self.stage = Stage::Established;
        handshakes::end(self.newcomer);
    }

    /// The link is lost before its peer has authenticated.
    pub(super) fn abandon(&self) {
        debug_assert!(!self.is_established(), "the handshake of an established link has ended already");
        handshakes::end(self.newcomer);
    }
}
