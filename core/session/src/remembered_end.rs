//! The remembered end of a session that both ends have closed. If the server's *close* is lost with its carrier, the
//! client reconnects on another carrier, and the server repeats its *close*.

use core::net::SocketAddr;

use spillway_auth::Key;
use spillway_wire::preamble::KeyId;
use spillway_wire::session::{Opening, Position};
use spillway_wire::{CloseReason, Control, Kind, RefuseReason};

use crate::identity::Identity;

/// The end of one session, which the server remembers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RememberedEnd {
    /// The client key that the session's key is derived from.
    pub(crate) key: KeyId,
    pub(crate) life: u64,
    /// The highest epoch of the session's carriers.
    pub(crate) epoch: u32,
    pub(crate) position: Position,
    /// The reason in the server's *close*.
    pub(crate) reason: CloseReason,
}

impl RememberedEnd {
    /// The answer to the opening message of a client that has closed the session and lacks the server's *close*.
    ///
    /// *Gone* if the server has not received all bytes that the client sent, because the server's application
    /// closed first, or the client reset the session: an orderly end would claim that the server has received
    /// all bytes.
    pub(crate) fn answer(
        &mut self,
        key: &Key,
        (kind, client, opening): (Kind, SocketAddr, &Opening),
    ) -> Result<Control, RefuseReason> {
        let identity = Identity::new(key, opening.session);
        if opening.key != self.key || !identity.is_proven_by_opening(opening, kind, client) {
            return Err(RefuseReason::Forbidden);
        }
        // A client that sends *connect* has never received this life's *resumed*.
        if kind != Kind::Reconnect || opening.life != self.life {
            return Err(RefuseReason::Gone);
        }
        if opening.epoch <= self.epoch {
            return Err(RefuseReason::Stale);
        }
        if opening.position.sent != self.position.received || opening.position.received > self.position.sent {
            return Err(RefuseReason::Gone);
        }
        self.epoch = opening.epoch;
        Ok(Control::Resumed(identity.resumed((self.epoch, self.life), self.position)))
    }
}
