//! Passes the events of a link's endpoint on: to connections, sessions, the accept queue, the log and the status page.

use core::net::SocketAddr;
use core::sync::atomic::Ordering;

use spillway_batch::{CloseReason, Id, RefuseReason, Role, ServerEvent};
use spillway_session::OpeningMessage;
use spillway_transport::Time;

use super::{Inner, Referent};
use crate::listeners::{self, Offer};
use crate::notify::notify;
use crate::status::{self, Counter};
use crate::wakes::Wakes;
use crate::{connections, log};

impl Inner {
    /// Handles an event of the endpoint.
    pub(super) fn handle(&mut self, now: Time, event: ServerEvent<'_>, wakes: &mut Wakes) {
        match event {
            ServerEvent::Data { id, bytes } => {
                if let Some(connection) = self.connection(id) {
                    if connection.deliver(bytes) {
                        self.raised.push(connection.index);
                    } else if let Some(endpoint) = &mut self.endpoint {
                        let outcome = endpoint.consumed(id, bytes.len());
                        debug_assert_eq!(
                            outcome,
                            Ok(()),
                            "bytes that were just received should be consumable"
                        );
                    }
                }
            }
            ServerEvent::Connect { id, client, .. } => self.handle_connect(id, client, wakes),
            ServerEvent::Session { id, kind, client, opening } => {
                self.handle_session_opening(
                    OpeningMessage { carrier: (self.index, id), kind, client, opening },
                    wakes,
                );
            }
            ServerEvent::Carried { id, bytes } => self.handle_session_data(now, id, bytes, wakes),
            ServerEvent::CarriedControl { id, control } => self.handle_session_control(now, id, &control),
            ServerEvent::Finished { id } => {
                if let Some(connection) = self.connection(id) {
                    connection.note_client_finished();
                    notify(connection, wakes);
                }
            }
            ServerEvent::Closed { id, reason } => self.handle_client_close(id, reason, wakes),
            ServerEvent::Established { role, key } => {
                let is_encrypted = self.endpoint.as_ref().is_some_and(|endpoint| endpoint.is_encrypted());
                status::link_established(self.index, role, key.0, is_encrypted);
                self.authentication.establish();
                if let (Role::Helper, Some(peer)) = (role, self.peer) {
                    log::line(format_args!("link with the {role} at {peer}, key {key}"));
                }
            }
            ServerEvent::Forbidden { client, why } => {
                status::count(Counter::ConnectionForbidden);
                if let Some(peer) = self.peer {
                    log::line(format_args!("client {client} through {peer} refused: {why}"));
                }
            }
            ServerEvent::Drain { deadline_ms } => {
                if let Some(peer) = self.peer {
                    log::line(format_args!(
                        "the peer at {peer} drains: its links end within {deadline_ms} ms"
                    ));
                }
            }
        }
    }

    fn handle_connect(&mut self, id: Id, client: SocketAddr, wakes: &mut Wakes) {
        let Some(connection) = connections::take() else {
            status::count(Counter::ConnectionFull);
            return self.refuse(id, RefuseReason::Full);
        };
        connection.link.store(self.index, Ordering::Relaxed);
        connection.id.store(id.0, Ordering::Relaxed);
        {
            let mut inner = connection.lock();
            (inner.client, inner.local) = (Some(client), self.local);
        }
        match listeners::offer(connection, client, wakes) {
            Offer::Queued => {
                status::connection_began(connection, client, (self.index, id));
                self.set_referent(id, Referent::Connection(connection.index));
            }
            Offer::Refused(reason) => {
                status::connection_refused(reason);
                connections::give_back(connection);
                self.refuse(id, reason);
            }
        }
    }

    fn handle_client_close(&mut self, id: Id, reason: CloseReason, wakes: &mut Wakes) {
        let Some(connection) = self.connection(id) else { return };
        if listeners::withdraw(connection) {
            // The connection waited to be accepted.
            status::connection_ended(connection);
            self.set_referent(id, Referent::Nothing);
            if let Some(endpoint) = &mut self.endpoint {
                endpoint.close(id, CloseReason::Normal);
            }
            connections::give_back(connection);
            return;
        }
        connection.note_client_closed(reason != CloseReason::Normal);
        notify(connection, wakes);
    }
}
