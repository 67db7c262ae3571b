//! How a session ended that both ends had closed. The server's *close* may be lost with its carrier: then the client
//! comes again on another one, and is told the same.

use core::net::SocketAddr;

use spillway_auth::Key;
use spillway_wire::preamble::KeyId;
use spillway_wire::session::{Opening, Position};
use spillway_wire::{CloseReason, Control, Kind, RefuseReason};

use crate::identity::Identity;

/// The end of one session, as its server remembers it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Last {
    /// The client key that the session's key is derived from.
    pub(crate) key: KeyId,
    pub(crate) life: u64,
    /// Of the last carrier on which anything of the session was said.
    pub(crate) epoch: u32,
    pub(crate) position: Position,
    /// What the server said in its *close*.
    pub(crate) reason: CloseReason,
}

impl Last {
    /// The answer to first words of the session's client, who has closed it and does not know the end.
    ///
    /// *Gone* where the server has not received all that the client has sent, because its application closed first, or
    /// the client reset the session: an end in order would claim more than is known.
    pub(crate) fn answer(
        &mut self,
        key: &Key,
        (kind, client, opening): (Kind, SocketAddr, &Opening),
    ) -> Result<Control, RefuseReason> {
        let identity = Identity::new(key, opening.session);
        if opening.key != self.key || !identity.proves(opening, kind, client) {
            return Err(RefuseReason::Forbidden);
        }
        // A client that says *connect* has never heard of this life.
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
