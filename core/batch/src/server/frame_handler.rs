//! The reaction of a server's end of a link to each frame: which connections may begin, and which event the caller
//! gets.

use alloc::sync::Arc;
use core::net::SocketAddr;

use spillway_auth::KeyRing;
use spillway_wire::preamble::{REQUESTS_ACKNOWLEDGED_SINCE, Role, SESSIONS_SINCE};
use spillway_wire::session::{Acknowledge, Reconnect};
use spillway_wire::{Connect, Control, Id, Kind, Piece, RefuseReason};

use super::config::ServerConfig;
use super::stage::AuthenticatedPeer;
use crate::connection::Connection;
use crate::error::LinkError;
use crate::event::ServerEvent;
use crate::link_end::{Disposition, LinkEnd};

/// Handles the frames of one link. The table of connections is in the link's [`LinkEnd`].
#[derive(Debug)]
pub(super) struct FrameHandler {
    config: Arc<ServerConfig>,
    peer: SocketAddr,
    local: SocketAddr,
    /// The helper has announced that it drains.
    is_draining: bool,
    /// The helper has requested that this connection's replies are kept. The request applies only if the next
    /// opening message is this connection's *connect*.
    keep_next: Option<Id>,
}

impl FrameHandler {
    pub(super) fn new(config: Arc<ServerConfig>, peer: SocketAddr, local: SocketAddr) -> FrameHandler {
        FrameHandler { config, peer, local, is_draining: false, keep_next: None }
    }

    /// Accepted keys of helpers and clients.
    pub(super) fn ring(&self) -> &KeyRing {
        &self.config.ring
    }

    /// The peer's address.
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Handles one piece of a batch. `None`: the frame needs no event.
    pub(super) fn handle<'a>(
        &mut self,
        link_end: &mut LinkEnd,
        from: AuthenticatedPeer,
        piece: Piece<'a>,
    ) -> Result<Option<ServerEvent<'a>>, LinkError> {
        if from.version < SESSIONS_SINCE
            && matches!(&piece, Piece::Control { control, .. } if control.is_of_sessions())
        {
            return Err(LinkError::Sessions);
        }
        let (id, disposition, event) = match piece {
            Piece::Data { kind: Kind::Request, id, bytes, last } => {
                match link_end.handle_data(id, bytes.len(), last) {
                    Disposition::Carry => return Ok(Some(ServerEvent::Carried { id, bytes })),
                    disposition => (id, disposition, ServerEvent::Data { id, bytes }),
                }
            }
            Piece::Data { kind, .. } => return Err(LinkError::Direction(kind)),
            Piece::Control { id, control } => match control {
                Control::Connect(connect) => {
                    return self.handle_connect(link_end, from, id, connect).map(Some);
                }
                Control::Reconnect(Reconnect { client, opening, .. }) => {
                    let connection = Connection::carrier();
                    let event = ServerEvent::Session { id, kind: Kind::Reconnect, client, opening };
                    return self.admit(link_end, from.role, id, client, connection, event).map(Some);
                }
                Control::Drain { deadline_ms } => {
                    return Ok(self.handle_drain(link_end, from.role, id, deadline_ms));
                }
                control if link_end.is_carrier(id) => {
                    if matches!(control, Control::Close(_)) {
                        link_end.handle_close(id);
                    }
                    // Returned even after our own *close*, because the session waits for the peer's *close*.
                    return Ok(Some(ServerEvent::CarriedControl { id, control }));
                }
                Control::Acknowledge(Acknowledge { received: 0, .. }) if link_end.get(id).is_none() => {
                    self.keep_next = Some(id);
                    return Ok(None);
                }
                Control::Acknowledge(acknowledge) => {
                    let bytes_max = self.config.limits.kept_bytes_max;
                    let disposition = link_end.handle_acknowledge(id, acknowledge.received, bytes_max);
                    (id, disposition, ServerEvent::CarriedControl { id, control })
                }
                Control::Credit(limit) => {
                    link_end.handle_credit(id, limit);
                    return Ok(None);
                }
                Control::Finish(offset) => {
                    (id, link_end.handle_finish(id, offset), ServerEvent::Finished { id })
                }
                Control::Close(reason) => (id, link_end.handle_close(id), ServerEvent::Closed { id, reason }),
                Control::Accepted | Control::Refused(_) | Control::Resumed(_) => {
                    return Err(LinkError::Direction(control.kind()));
                }
            },
        };
        if matches!(disposition, Disposition::Deliver)
            && matches!(event, ServerEvent::Data { .. } | ServerEvent::Finished { .. })
        {
            link_end.acknowledge_later(id);
        }
        Ok(match disposition {
            Disposition::Deliver | Disposition::Carry => Some(event),
            Disposition::Ignore => None,
            Disposition::Broken(reason) => Some(ServerEvent::Closed { id, reason }),
        })
    }

    /// A helper announces once, for its whole link, that it drains. Other *drain* messages are ignored.
    fn handle_drain<'a>(
        &mut self,
        link_end: &mut LinkEnd,
        role: Role,
        id: Id,
        deadline_ms: u32,
    ) -> Option<ServerEvent<'a>> {
        if role != Role::Helper || id != Id::LINK || core::mem::replace(&mut self.is_draining, true) {
            link_end.count_unknown_frame();
            return None;
        }
        Some(ServerEvent::Drain { deadline_ms })
    }

    fn handle_connect<'a>(
        &mut self,
        link_end: &mut LinkEnd,
        from: AuthenticatedPeer,
        id: Id,
        connect: Connect,
    ) -> Result<ServerEvent<'a>, LinkError> {
        let Connect { client, server, credit, session } = connect;
        let (connection, event) = match session {
            None => {
                let limits = self.config.limits;
                let mut connection = Connection::new(credit, limits.window_bytes);
                if self.keep_next == Some(id) {
                    if limits.kept_bytes_max > 0 {
                        connection.outgoing.keep(limits.kept_bytes_max);
                    }
                    if from.version >= REQUESTS_ACKNOWLEDGED_SINCE {
                        connection.incoming.enable_acknowledgements();
                    }
                }
                (connection, ServerEvent::Connect { id, client, server })
            }
            Some(opening) => {
                let event = ServerEvent::Session { id, kind: Kind::Connect, client, opening };
                (Connection::carrier(), event)
            }
        };
        self.admit(link_end, from.role, id, client, connection, event)
    }

    /// Adds a connection, or refuses it if the link may not carry this client's address. Fails if the id is in use or
    /// out of range.
    fn admit<'a>(
        &mut self,
        link_end: &mut LinkEnd,
        role: Role,
        id: Id,
        client: SocketAddr,
        connection: Connection,
        event: ServerEvent<'a>,
    ) -> Result<ServerEvent<'a>, LinkError> {
        self.keep_next = None;
        let connections_max = self.config.limits.connections_max_of(role);
        if id == Id::LINK || id.0 > connections_max || link_end.get(id).is_some() {
            return Err(LinkError::Id(id));
        }
        if let Err(why) = self.config.rules.check(role, self.peer, self.local, client) {
            link_end.batching.control(id, Control::Refused(RefuseReason::Forbidden));
            return Ok(ServerEvent::Forbidden { client, why });
        }
        link_end.insert(id, connection.with_client(client));
        Ok(event)
    }
}
